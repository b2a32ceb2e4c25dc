"""One file per text, in folders or in an archive: aclImdb and 20news-bydate."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fedkeel.data.arrays import Arrays
from fedkeel.data.readers.file_contents import broken, check_members, reading
from fedkeel.data.readers.text_arrays import Samples, train_and_test


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
    """aclImdb_v1.tar.gz as downloaded."""
    wanted = re.compile(r"aclImdb/(train|test)/(neg|pos)/[^/]+\.txt$")
    parts: dict[str, Samples] = {"train": [], "test": []}
    with reading(path), tarfile.open(path) as archive:
        size = 0
        for member in archive:
            check_members(path, [size := size + member.size])
            if found := wanted.search(member.name):
                text = archive.extractfile(member).read().decode()  # type: ignore[union-attr]
                parts[found[1]].append((text, int(found[2] == "pos")))
    if not parts["train"] or not parts["test"]:
        raise broken(path, "it holds no reviews")
    return train_and_test(parts["train"], parts["test"])


def without_names(post: str) -> str:
    """A newsgroup post without header, signature and quotations, as scikit-learn removes them.

    Otherwise a model would learn who writes to which group instead of the topic.
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
    return train_and_test(*(_folder(path, groups, "latin-1", without_names) for path in (train, test)))
