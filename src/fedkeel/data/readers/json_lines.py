"""Texts in files with one JSON object per line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedkeel.data.arrays import Arrays
from fedkeel.data.readers import text_arrays
from fedkeel.data.readers.file_contents import broken, json_objects, reading
from fedkeel.data.readers.text_files import without_names


def train_and_test(train: Path, test: Path, clean: Callable[[str], str] = str) -> Arrays:
    """Objects with label, text and perhaps title. Labels that are words are numbered in alphabetical order."""
    parts = [_json_samples(path, clean) for path in (train, test)]
    if isinstance(parts[0][0][1], str):
        number = {name: i for i, name in enumerate(sorted({label for _, label in parts[0]}))}
        with reading(test):
            parts = [[(text, number[label]) for text, label in part] for part in parts]
    return text_arrays.train_and_test(*parts)


def _json_samples(path: Path, clean: Callable[[str], str]) -> text_arrays.Samples:
    with reading(path):
        rows = json_objects(path)
        if not rows:
            raise broken(path, "it is empty")
        return [(clean(f"{row['title']} {row['text']}" if row.get("title") else row["text"]), row["label"]) for row in rows]


def tweets(path: Path, owner: str) -> Arrays:
    """Objects with label (negative, neutral, positive), text, airline and user; a fifth is held out for testing."""
    with reading(path):
        rows = json_objects(path)
        number = {"negative": 0, "neutral": 1, "positive": 2}
        return text_arrays.with_held_out([(row["text"], number[row["label"]]) for row in rows], [row[owner] for row in rows])


def newsgroups(train: Path, test: Path) -> Arrays:
    return train_and_test(train, test, without_names)
