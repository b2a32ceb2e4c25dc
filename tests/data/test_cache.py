"""Arrays are parsed once, then memory-mapped, and parsed again when a file changes. Without a cache they stay in memory."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel.data import cache
from fedkeel.data.arrays import Arrays
from fedkeel.data.cache import cached


class Reader:
    """Parses a text of numbers, and counts its calls."""

    def __init__(self, path: Path) -> None:
        self.path, self.calls = path, 0

    def read(self) -> Arrays:
        self.calls += 1
        values = np.array(self.path.read_text().split(), dtype=np.int64)
        return {"x": values[:, None], "y": values, "x.bytes": values.astype(np.uint8)}

    def load(self, reader: str = "numbers") -> Arrays:
        return cached("numbers", reader, [self.path, None], self.read)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_complained", False)
    (tmp_path / "numbers.txt").write_text("1 2 3")
    return Reader(tmp_path / "numbers.txt")


def test_parsed_once_and_mapped(reader: Reader) -> None:
    first, second = reader.load(), reader.load()
    assert reader.calls == 1
    assert set(first) == {"x", "y", "x.bytes"}
    for arrays in (first, second):
        assert isinstance(arrays["x"], np.memmap)
        assert arrays["x"].tolist() == [[1], [2], [3]]
    second["y"][0] = 9  # writing is allowed, but never reaches the file
    assert reader.load()["y"].tolist() == [1, 2, 3]
    assert reader.calls == 1


def test_a_changed_file_is_parsed_again(reader: Reader) -> None:
    reader.load()
    reader.path.write_text("4 5 6")  # as long as before
    os.utime(reader.path, ns=(0, time.time_ns() + 1_000_000))
    assert reader.load()["y"].tolist() == [4, 5, 6]
    reader.path.write_text("4 5 6 7")
    assert reader.load()["y"].tolist() == [4, 5, 6, 7]
    assert reader.calls == 3
    reader.load("another way to read it")
    assert reader.calls == 4


def test_a_change_in_any_file_of_a_folder_is_noticed(tmp_path: Path, reader: Reader) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/a").write_text("1")

    def load() -> Arrays:
        return cached("folder", "r", [tmp_path / "deep"], reader.read)

    load(), load()
    assert reader.calls == 1
    (tmp_path / "deep/er/b").write_text("2")
    load()
    assert reader.calls == 2


@pytest.mark.parametrize("damage", ["short", "empty", "gone"])
def test_a_damaged_cache_is_rebuilt(tmp_path: Path, reader: Reader, damage: str) -> None:
    reader.load()
    (file,) = (tmp_path / "cache").glob("*/y.npy")
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-8] if damage == "short" else b"")
    assert reader.load()["y"].tolist() == [1, 2, 3]
    assert reader.load()["y"].tolist() == [1, 2, 3]
    assert reader.calls == 2
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_without_a_cache_arrays_stay_in_memory_with_one_warning(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEDKEEL_CACHE", str(reader.path / "below a file"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert reader.load()["y"].tolist() == [1, 2, 3]
    assert reader.calls == 2
    assert [record.message.count("cannot be written") for record in caplog.records] == [1]


def test_a_reader_that_fails_leaves_nothing(tmp_path: Path, reader: Reader) -> None:
    reader.path.write_text("no numbers")
    with pytest.raises(ValueError, match="invalid literal"):
        reader.load()
    assert not (tmp_path / "cache").exists()


def _load_together(reader: Reader, start: Any, results: Any) -> None:
    start.wait()
    results.put(reader.load()["y"].tolist())


def test_processes_that_load_at_once_all_succeed(tmp_path: Path, reader: Reader) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    workers = [context.Process(target=_load_together, args=(reader, start, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    start.set()
    assert [results.get(timeout=60) for _ in workers] == [[1, 2, 3]] * 4
    for worker in workers:
        worker.join()
    assert len(list((tmp_path / "cache").iterdir())) == 1
