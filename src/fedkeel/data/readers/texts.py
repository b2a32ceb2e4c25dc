"""Readers of text sets, each into Texts (as two arrays) and y [n] int64 for training, and the same for testing."""

from __future__ import annotations

import csv
import io
import re
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.data.readers.files import Arrays, broken, contents, json_lines, lines, reading
from fedkeel.data.readers.images import held_out
from fedkeel.data.texts import PAIR, Texts

Samples = list[tuple[str, Any]]  # (text, label)


def text_arrays(part: str, samples: Sequence[tuple[str, int]]) -> Arrays:
    """part: "" for training, "test_" for testing."""
    texts = Texts.from_strings(text for text, _ in samples)
    y = np.array([label for _, label in samples], dtype=np.int64)
    return {f"{part}x.bytes": texts.data, f"{part}x.offsets": texts.offsets, f"{part}y": y}


def train_and_test(train: Samples, test: Samples) -> Arrays:
    return text_arrays("", train) | text_arrays("test_", test)


def with_held_out(samples: Samples, key: Iterable[Any] | None = None) -> Arrays:
    """A set that has no test set: a fifth is held out; key: who wrote every text, numbered in sorted order."""
    owner = None if key is None else np.unique(np.array(list(key)), return_inverse=True)[1]
    split = held_out(np.arange(len(samples)), np.zeros(len(samples)), owner)
    arrays = train_and_test([samples[i] for i in split["x"]], [samples[i] for i in split["test_x"]])
    return arrays if owner is None else arrays | {"key": split["key"]}


# JSON lines -----------------------------------------------------------------------------------------------------------


def jsonl(train: Path, test: Path, clean: Callable[[str], str] = str) -> Arrays:
    """An object a line with label, text and perhaps title; labels that are words are numbered in their order."""
    parts = [_json_samples(path, clean) for path in (train, test)]
    if isinstance(parts[0][0][1], str):
        number = {name: i for i, name in enumerate(sorted({label for _, label in parts[0]}))}
        with reading(test):
            parts = [[(text, number[label]) for text, label in part] for part in parts]
    return train_and_test(*parts)


def _json_samples(path: Path, clean: Callable[[str], str]) -> Samples:
    with reading(path):
        rows = json_lines(path)
        return [(clean(f"{row['title']} {row['text']}" if row.get("title") else row["text"]), row["label"]) for row in rows]


def tweets(path: Path, owner: str) -> Arrays:
    """An object a line with label (negative, neutral, positive), text, airline and user."""
    with reading(path):
        rows = json_lines(path)
        number = {"negative": 0, "neutral": 1, "positive": 2}
        return with_held_out([(row["text"], number[row["label"]]) for row in rows], [row[owner] for row in rows])


# Tables of text: GLUE, AG News ----------------------------------------------------------------------------------------


def _tsv(path: Path, columns: Sequence[str]) -> Samples:
    """Columns by the names in the first line: the texts', then the label's. Quotes mean nothing in GLUE's files."""
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
            raise broken(path, f"line {i} has {len(row)} columns, the first {len(heading)}")
        *texts, label = (row[place] for place in places)
        if label not in number:
            raise broken(path, f"line {i} has the label {label!r}")
        samples.append((PAIR.join(texts), number[label]))
    return samples


def glue(train: Path, dev: Path, columns: Sequence[str]) -> Arrays:
    """The test labels of GLUE are not public: its dev set is for testing."""
    return train_and_test(_tsv(train, columns), _tsv(dev, columns))


def glue_dev(dev: Path, columns: Sequence[str]) -> Arrays:
    return with_held_out(_tsv(dev, columns))


def ag_csv(train: Path, test: Path) -> Arrays:
    """Rows of class 1-4, title, text."""

    def samples(path: Path) -> Samples:
        with reading(path):
            rows = list(csv.reader(io.StringIO(contents(path).decode(), newline="")))
            return [(f"{title} {text}", int(label) - 1) for label, title, text in rows if label.isdigit()]

    return train_and_test(samples(train), samples(test))


# A file a text: aclImdb, 20news-bydate --------------------------------------------------------------------------------


def _folder(path: Path, classes: Sequence[str], encoding: str, clean: Callable[[str], str] = str) -> Samples:
    samples: Samples = []
    for label, name in enumerate(classes):
        for file in sorted((path / name).iterdir()):
            with reading(file):
                samples.append((clean(file.read_bytes().decode(encoding)), label))
    return samples


def imdb_folder(train: Path, test: Path) -> Arrays:
    """aclImdb: {train, test}/{neg, pos}/*.txt."""
    for path in (train, test):
        for name in ("neg", "pos"):
            if not (path / name).is_dir():
                raise broken(path, f"there is no folder {name}")
    return train_and_test(*(_folder(path, ("neg", "pos"), "utf-8") for path in (train, test)))


def imdb_archive(path: Path) -> Arrays:
    """aclImdb_v1.tar.gz as it is downloaded."""
    wanted = re.compile(r"aclImdb/(train|test)/(neg|pos)/[^/]+\.txt$")
    parts: dict[str, Samples] = {"train": [], "test": []}
    with reading(path), tarfile.open(path) as archive:
        for member in archive:
            if found := wanted.search(member.name):
                text = archive.extractfile(member).read().decode()  # type: ignore[union-attr]
                parts[found[1]].append((text, int(found[2] == "pos")))
    if not parts["train"] or not parts["test"]:
        raise broken(path, "it holds no reviews")
    return train_and_test(parts["train"], parts["test"])


def body(post: str) -> str:
    """A newsgroup post without header, signature and quotations, as scikit-learn removes them.

    Otherwise a model learns who writes to which group instead of what about.
    """
    from sklearn.datasets._twenty_newsgroups import (
        strip_newsgroup_footer,
        strip_newsgroup_header,
        strip_newsgroup_quoting,
    )

    return str(strip_newsgroup_footer(strip_newsgroup_quoting(strip_newsgroup_header(post))))


def newsgroups_folder(train: Path, test: Path) -> Arrays:
    """20news-bydate-{train, test}/GROUP/NUMBER."""
    groups = sorted(path.name for path in train.iterdir() if path.is_dir())
    return train_and_test(*(_folder(path, groups, "latin-1", body) for path in (train, test)))


def newsgroups_jsonl(train: Path, test: Path) -> Arrays:
    return jsonl(train, test, body)
