"""The contents of files, packed or not. If a file cannot be read, the error is a single line that names it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from fedkeel.data.arrays import Arrays

# What parsers raise if a file is damaged.
DAMAGED: tuple[type[Exception], ...] = (EOFError, OSError, ValueError, KeyError, TypeError, IndexError)
DAMAGED += (AttributeError, ImportError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
DAMAGED += (pickle.UnpicklingError,)


def broken(path: Path, why: object) -> ValueError:
    return ValueError(f"data: {path} cannot be read, it may be incomplete or another file: {why}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns every error of a parser into an error that names the file."""
    try:
        yield
    except DAMAGED as error:
        if str(error).startswith("data: "):
            raise
        raise broken(path, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def opened(path: Path) -> BinaryIO:
    """The file, open for reading its unpacked bytes."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    return cast(BinaryIO, lzma.open(path)) if path.suffix == ".xz" else path.open("rb")


def contents(path: Path) -> bytes:
    """The unpacked bytes of a file."""
    with reading(path), opened(path) as file:
        return file.read()


def lines(path: Path) -> list[str]:
    """The lines of a text file, without their ends. Only a line feed ends a line: texts may hold other separators."""
    with reading(path):
        return contents(path).decode().replace("\r\n", "\n").removesuffix("\n").split("\n")


def json_objects(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one JSON object per line."""
    with reading(path):
        return [json.loads(line) for line in lines(path) if line]


def numpy_archive(path: Path) -> Arrays:
    """The arrays of a .npz file."""
    with reading(path), np.load(io.BytesIO(contents(path)), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
