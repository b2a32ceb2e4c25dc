"""The audit log of a deployed run: who replied what and when, who was refused and why, which models were sent.

It is a file with one JSON object per line. Each line has the hash of the line before it, so nobody can change, remove or
insert a line without changing all hashes after it. The signature of the run (signature.py) covers the last one.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedkeel.errors import Damaged
from fedkeel.files import guarded

FILE = "audit.jsonl"
START = "0" * 64  # in the place of the hash before the first line


class AuditLog:
    """Appends to the log in a directory. A log that is there already must be whole."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        _cut_half_line(self.path)
        self.last, self.lines = check_chain(self.path)

    def add(self, event: str, **facts: Any) -> None:
        entry = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts, "before": self.last}
        self.last = _hash(entry)
        line = json.dumps({**entry, "hash": self.last}) + "\n"
        guarded(self.path, lambda: self._append(line.encode()))
        self.lines += 1

    def _append(self, line: bytes) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)


def check_chain(path: Path) -> tuple[str, int]:
    """(the hash of the last line, the number of lines). Raises Damaged if a line is not what was written."""
    last, count = START, 0
    if not path.exists():
        return last, count
    with path.open("rb") as file:
        for count, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
                found = entry.pop("hash")
                whole = entry["before"] == last and found == _hash(entry)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                whole = False
            if not whole:
                raise Damaged(f"{path} is damaged: line {count} is not what the run wrote")
            last = found
    return last, count


def _hash(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _cut_half_line(path: Path) -> None:
    """Removes the end of a log whose writer was killed in the middle of a line."""
    if path.exists():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            guarded(path, lambda: os.truncate(path, whole))
