"""The history of a run in a file: one row per line, appended after every round, each with a checksum.

The file is never rewritten while a run goes on. A checkpoint holds the number of its rows and a checksum of their bytes.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from fedkeel.errors import Damaged, StorageError
from fedkeel.files import NO_LINK, guarded, sealed, unsealed, write_atomically

FILE = "metrics.jsonl"


class Extent(NamedTuple):
    """How much of the file belongs to a checkpoint."""

    rows: int
    checksum: int  # of the bytes of these rows


class HistoryFile:
    """Writes the file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.extent = Extent(0, 0)

    def begin(self, rows: list[dict[str, Any]]) -> None:
        """Cuts the file to these rows. Rows after a checkpoint will be computed again."""
        content = b"".join(map(_line, rows))
        self.extent = Extent(len(rows), zlib.crc32(content))
        if not self.path.exists() or self.path.read_bytes() != content:
            write_atomically(self.path, content)

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row, the whole line or nothing of it."""
        line = _line(row)
        guarded(self.path, lambda: self._append(line))
        self.extent = Extent(self.extent.rows + 1, zlib.crc32(line, self.extent.checksum))

    def _append(self, line: bytes) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | NO_LINK)
        try:
            size = os.fstat(file).st_size
            try:
                written = os.write(file, line)
                if written < len(line):
                    raise StorageError(f"out: cannot write {self.path}: the disk is full")
            except BaseException:
                os.ftruncate(file, size)
                raise
        finally:
            os.close(file)

    def sync(self) -> Extent:
        """Puts the rows so far on the disk, before a checkpoint refers to them."""

        def flush() -> None:
            file = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)

        guarded(self.path, flush)
        return self.extent


def read_extent(folder: Path, extent: Extent) -> list[dict[str, Any]]:
    """The rows that belong to a checkpoint. Raises Damaged if the file does not hold them."""
    path = folder / FILE
    try:
        lines = path.read_bytes().splitlines(keepends=True)[: extent.rows]
    except OSError as error:
        raise Damaged(f"resume: {path} cannot be read: {error.strerror or error}") from None
    if len(lines) != extent.rows or zlib.crc32(b"".join(lines)) != extent.checksum:
        broken = next((i for i, line in enumerate(lines) if not _whole(line)), len(lines))
        raise Damaged(f"resume: {path} is damaged: line {broken + 1} is not what the run wrote")
    return [unsealed(line) for line in lines]


def read_all(folder: Path) -> list[dict[str, Any]]:
    """All rows of the file. A half line at its end, of a run that was killed, does not count."""
    path = folder / FILE
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise ValueError(f"out: {path} cannot be read: {error.strerror or error}") from None
    if lines and not lines[-1].endswith(b"\n") and not _whole(lines[-1]):
        lines.pop()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(unsealed(line))
        except (ValueError, RecursionError) as error:
            raise Damaged(f"out: {path} cannot be read: line {number} is damaged ({error})") from None
    return rows


def _line(row: dict[str, Any]) -> bytes:
    return sealed(row).encode() + b"\n"


def _whole(line: bytes) -> bool:
    try:
        unsealed(line)
    except (ValueError, RecursionError):
        return False
    return True
