"""GLUE's tables: tab-separated files with a heading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedkeel.data.arrays import Arrays
from fedkeel.data.readers.file_contents import broken, lines
from fedkeel.data.readers.text_arrays import Samples, train_and_test, with_held_out
from fedkeel.data.texts import PAIR


def _tsv(path: Path, columns: Sequence[str]) -> Samples:
    """Texts and labels of the named columns, the label last. The first line names the columns; quotes mean nothing."""
    heading, *rows = [line.split("\t") for line in lines(path)]
    names = {"is_duplicate": "label"}
    heading = [names.get(name, name) for name in heading]
    missing = [name for name in columns if name not in heading]
    if missing:
        raise broken(path, f"there is no column {missing[0]!r} among {', '.join(heading)}")
    places = [heading.index(name) for name in columns]
    number = {"0": 0, "1": 1, "entailment": 0, "not_entailment": 1}  # as GLUE numbers them
    samples = []
    for i, row in enumerate(rows, 2):
        if len(row) != len(heading):
            raise broken(path, f"line {i} has {len(row)} columns, the first line has {len(heading)}")
        *texts, label = (row[place] for place in places)
        if label not in number:
            raise broken(path, f"line {i} has the label {label!r}")
        samples.append((PAIR.join(texts), number[label]))
    return samples


def train_and_dev(train: Path, dev: Path, columns: Sequence[str]) -> Arrays:
    """The dev set is the test part, because the test labels of GLUE are not public."""
    return train_and_test(_tsv(train, columns), _tsv(dev, columns))


def only_dev(dev: Path, columns: Sequence[str]) -> Arrays:
    """A fifth of the dev set is the test part, the rest is for training."""
    return with_held_out(_tsv(dev, columns))
