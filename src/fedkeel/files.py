"""Files that are replaced as a whole or not at all, locks, and TOML."""

from __future__ import annotations

import contextlib
import errno
import os
import tomllib
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedkeel.errors import Busy, StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replaces a file. After a crash it holds the whole new content or the whole old one. mode: its permissions, before the
    umask."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise StorageError(f"out: cannot write {path}: {error.strerror or error}") from error


def _sync(folder: Path) -> None:
    """Makes sure that a renaming survives a power failure. Slots of the store that only the old checkpoint needs will be
    overwritten, so the new checkpoint must be on the disk."""
    if os.name != "posix":
        return  # Windows cannot open a directory
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def guarded(path: Path, action: Callable[[], Any]) -> Any:
    """Runs a file operation. Its OSError becomes a StorageError that names the file."""
    try:
        return action()
    except OSError as error:
        raise StorageError(f"out: cannot write {path}: {error.strerror or error}") from error


def claim(path: Path, owner: object, otherwise: str) -> None:
    """Locks a file, as a sign that its directory is in use, until the owner is deleted or its process ends. Two processes
    that write the same client memory would destroy it. otherwise: the message if another process holds the lock."""
    if fcntl is None:
        return
    file = guarded(path, lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    weakref.finalize(owner, os.close, file)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):  # other errors: the file system has no locks
            raise Busy(f"out: {otherwise} in {path.parent}") from None


def as_toml(value: Any) -> Any:
    """A config in the form that TOML can hold: without None, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: as_toml(z) for key, z in value.items() if z is not None}
    if isinstance(value, (list, tuple)):
        return [as_toml(z) for z in value]
    return value.tolist() if hasattr(value, "tolist") else value  # numpy's numbers and arrays


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file. Raises a ValueError of one line if it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"study: cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"study: {path} is not a TOML file: {' '.join(str(error).split())}") from None
