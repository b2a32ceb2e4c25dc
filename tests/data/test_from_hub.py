"""Data sets of the Hugging Face hub."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedkeel.data.load import load
from fedkeel.data.readers.hub import from_hub
from tests.data import formats


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)


def hub_folder(path: Path) -> Path:
    """A data set that `datasets` reads from a folder."""
    for part, n in (("train", 10), ("test", 4)):
        formats.jsonl(
            path / f"{part}.jsonl", [{"text": f"{part} {i}", "label": i % 2, "user": f"u{i // 2}"} for i in range(n)]
        )
    return path


class Part:
    """A split of `datasets`, with the parts that fedkeel uses."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, list(rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> Any:
        return self.rows[key] if isinstance(key, int) else [row[key] for row in self.rows]


@pytest.fixture(params=["stub", "datasets"])
def hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a data set with texts, from a stand-in or from the package itself."""
    if request.param == "datasets":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
        datasets.disable_progress_bars()
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
        return str(hub_folder(tmp_path / "posts"))
    rows = {
        part: Part([{"text": f"{part} {i}", "label": i % 2, "user": f"u{i // 2}"} for i in range(n)])
        for part, n in (("train", 10), ("test", 4))
    }
    stub = ModuleType("datasets")
    stub.load_dataset = lambda name, config: rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stub)
    return "somebody/posts"


@pytest.mark.filterwarnings("ignore")  # warnings of pandas and other packages that `datasets` imports
def test_texts_of_the_hub(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = from_hub(hub, key="user")
    assert list(data.x) == [f"train {i}" for i in range(10)]
    assert data.y.tolist() == [0, 1] * 5
    assert data.test is not None
    assert list(data.test[0]) == [f"test {i}" for i in range(4)]
    assert data.key is not None
    assert data.key.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    held = from_hub(hub, test=None, x=["user", "text"])
    assert held.test is not None
    assert (len(held.x), len(held.test[0])) == (8, 2)
    assert all(text.startswith("u") and "\x1etrain " in text for text in held.x)
    with pytest.raises(ValueError, match=r"has no column 'lable'.*label"):
        from_hub(hub, y="lable")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert list(from_hub(hub, key="user").x) == list(data.x)  # from the cache


def test_pictures_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = formats.RNG.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    part = Part([{"img": Image.fromarray(z), "fine_label": i} for i, z in enumerate(pixels)])
    stub = ModuleType("datasets")
    stub.load_dataset = lambda name, config: {"train": part, "test": part}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stub)
    data = load("cifar100")
    assert data.name == "cifar100"
    assert np.array_equal(data.x.numpy().transpose(0, 2, 3, 1), pixels)
    assert data.classes == 100


def test_a_failing_hub_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str, config: str | None) -> None:
        raise ConnectionError("no network")

    stub = ModuleType("datasets")
    stub.load_dataset = fails  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stub)
    with pytest.raises(ValueError, match=r"put cifar-100-python\.tar\.gz.*the hub did not deliver .*no network"):
        load("cifar100")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'fedkeel\[hub\]'"):
        from_hub("x/y")
