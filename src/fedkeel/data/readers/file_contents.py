"""The contents of files, packed or not. If a file cannot be read, the error is a single line that names it."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from fedkeel.data.arrays import Arrays

# What parsers raise if a file is damaged.
DAMAGED: tuple[type[Exception], ...] = (EOFError, OSError, ValueError, KeyError, TypeError, IndexError)
DAMAGED += (AttributeError, ImportError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
DAMAGED += (pickle.UnpicklingError, csv.Error, struct.error, ArithmeticError, MemoryError, RuntimeError, SyntaxError)
# A packed file of a data set unpacks to a few times its size. A file that unpacks to much more is refused before it fills
# the memory.
LARGEST_RATIO, HARMLESS = 200, 1 << 28  # unpacked bytes per packed byte; bytes that are always allowed


def broken(path: Path, why: object) -> ValueError:
    return ValueError(f"data: {path} cannot be read, it may be incomplete or another file: {why}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns every error of a parser into an error that names the file."""
    try:
        yield
    except Exception as error:
        if str(error).startswith("data: "):
            raise
        # Pillow is not imported only to name its error.
        if not isinstance(error, DAMAGED) and type(error).__name__ != "DecompressionBombError":
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
        most = largest_content(path)
        content = file.read(most + 1)
        if len(content) > most:
            raise broken(path, f"it unpacks to more than {most:,} bytes")
        return content


def largest_content(path: Path) -> int:
    """The most bytes that a file may unpack to."""
    return max(HARMLESS, LARGEST_RATIO * path.stat().st_size)


def check_members(path: Path, sizes: Iterable[int]) -> None:
    """Refuses an archive whose members are much larger than the archive. sizes: those of the members, unpacked."""
    if (total := sum(sizes)) > largest_content(path):
        raise broken(path, f"it unpacks to {total:,} bytes; at most {largest_content(path):,} are allowed")


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
    with reading(path):
        packed = io.BytesIO(contents(path))
        with zipfile.ZipFile(packed) as archive:
            check_members(path, [member.file_size for member in archive.infolist()])
        with np.load(packed, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
