"""Files as people have them: packed or not, whole or cut short. What is wrong with one is a single line that names it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import os
import pickle
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

Arrays = dict[str, np.ndarray]  # what a reader returns: x, y, test_x, test_y, key; texts are x.bytes and x.offsets

BROKEN = (EOFError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, ImportError)
BROKEN += (zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, pickle.UnpicklingError)


def broken(path: Path, why: object) -> ValueError:
    return ValueError(f"data: {path} cannot be read, it may be incomplete or another file: {why}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file makes a parser raise into an error that names the file."""
    try:
        yield
    except BROKEN as error:
        if str(error).startswith("data: "):
            raise
        raise broken(path, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def opened(path: Path) -> IO[bytes]:
    """The unpacked bytes of a file."""
    if path.suffix == ".gz":
        return gzip.open(path)
    return lzma.open(path) if path.suffix == ".xz" else path.open("rb")


def contents(path: Path) -> bytes:
    with reading(path), opened(path) as file:
        return file.read()


def lines(path: Path) -> list[str]:
    """The lines of a text, without their ends. Only a line feed ends one: texts may hold any other separator."""
    with reading(path):
        return contents(path).decode().replace("\r\n", "\n").removesuffix("\n").split("\n")


def json_lines(path: Path) -> list[dict[str, Any]]:
    with reading(path):
        return [json.loads(line) for line in lines(path) if line]


def numpy_archive(path: Path) -> Arrays:
    """The arrays of a .npz, packed again or not."""
    with reading(path), np.load(io.BytesIO(contents(path)), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


# Pickles of arrays ----------------------------------------------------------------------------------------------------

SAFE = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


class _OnlyArrays(pickle.Unpickler):
    """Makes plain values and arrays, and refuses every other name, so that a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SAFE:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no file of arrays needs")
        return super().find_class(re.sub(r"^numpy\.core\b", "numpy._core", module), name)


def unpickled(data: bytes, path: Path) -> Any:
    """What a pickle of arrays, lists, numbers and texts holds; path: for the error message."""
    with reading(path):
        return _OnlyArrays(io.BytesIO(data), encoding="bytes").load()


# Looking for files ----------------------------------------------------------------------------------------------------


def find(folder: Path, name: str) -> Path | None:
    """A file or folder by its name, packed or not; "a|b" is either of two names, "*" any letters."""
    for either in name.split("|"):
        for packing in ("", ".gz", ".xz"):
            wanted = either + packing
            if "*" in wanted:
                if found := sorted(folder.glob(wanted)):
                    return found[0].parent
            elif (folder / wanted).exists():
                return folder / wanted
    return None


def stamps(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of a file, or of all files below a folder."""
    if not path.is_dir():
        stat = path.stat()
        return [(path.name, stat.st_size, stat.st_mtime_ns)]
    found, folders = [], [str(path)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                else:
                    stat = entry.stat()
                    found.append((entry.path, stat.st_size, stat.st_mtime_ns))
    return sorted(found)
