"""Pictures in one folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedkeel.data.readers.picture_folder import from_folder
from tests.data import formats


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    made = {f"{part}/{kind}/{i}.png": formats.picture(8) for part in ("train", "val") for kind in "ba" for i in range(2)}
    formats.put(tmp_path / "pets", {name: data for name, (data, _) in made.items()} | {"train/a/notes.txt": b"no picture"})
    data = from_folder(tmp_path / "pets")
    assert data.y.tolist() == [0, 0, 1, 1]
    assert np.array_equal(data.x[0].numpy().transpose(1, 2, 0), made["train/a/0.png"][1])
    assert data.test is not None
    assert np.array_equal(data.test[0][3].numpy().transpose(1, 2, 0), made["val/b/1.png"][1])
    assert data.prepare is not None
    prepared = data.prepare(data.x)
    assert prepared.mean((0, 2, 3)).abs().max() < 1e-3
    assert (prepared.std((0, 2, 3)) - 1).abs().max() < 0.01
    assert from_folder(tmp_path / "pets", size=4).x.shape == (4, 3, 4, 4)


def test_without_a_test_part_a_fifth_is_held_out(tmp_path: Path) -> None:
    formats.put(tmp_path / "pets", {f"{kind}/{i}.png": formats.picture(8)[0] for kind in "ab" for i in range(5)})
    data = from_folder(tmp_path / "pets")
    assert data.test is not None
    assert (len(data.y), len(data.test[1])) == (8, 2)


def test_errors_name_classes_that_only_the_test_part_has(tmp_path: Path) -> None:
    """They must not be left out silently. A folder without pictures is not a class."""
    made = {f"{part}/{kind}/1.png": formats.picture(8)[0] for part in ("train", "test") for kind in "ab"}
    formats.put(tmp_path / "pets", made | {"test/notes/readme.txt": b"no picture"})
    assert from_folder(tmp_path / "pets").classes == 2
    formats.put(tmp_path / "pets", {f"test/{kind}/1.png": formats.picture(8)[0] for kind in "dc"})
    with pytest.raises(ValueError, match=r"^data: .*test has classes that are not in .*train: c, d; .* be in train$"):
        from_folder(tmp_path / "pets")


def test_errors_name_pictures_that_cannot_be_used(tmp_path: Path) -> None:
    formats.put(tmp_path / "pets", {"a/1.png": formats.picture(8)[0], "a/2.png": formats.picture(9)[0]})
    with pytest.raises(ValueError, match=r"2\.png cannot be read.* it is 9 x 9, others are 8 x 8"):
        from_folder(tmp_path / "pets")
    formats.put(tmp_path / "pets", {"a/2.png": formats.picture(8)[0][:100]})
    with pytest.raises(ValueError, match=r"2\.png cannot be read"):
        from_folder(tmp_path / "pets")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no folders of pictures"):
        from_folder(tmp_path / "empty")
    with pytest.raises(ValueError, match="there is no folder"):
        from_folder(tmp_path / "nowhere")
