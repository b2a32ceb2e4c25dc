"""Files that are replaced as a whole or not at all, locks, JSON with checksums, and TOML."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
import tomllib
import weakref
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from fedkeel.errors import Busy, StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # a symlink that somebody put in the file's place is not followed


def write_atomically(path: Path, content: bytes, mode: int = 0o666, keep: Path | None = None) -> None:
    """Replaces a file. After a crash it holds the whole new content or the whole old one.

    mode: its permissions, before the umask.  keep: another name, under which the old content stays.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)  # of a process that was killed; a symlink is removed, not followed
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags | NO_LINK, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            _second_name(path, keep)
        os.replace(part, path)
        _sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise StorageError(f"out: cannot write {path}: {error.strerror or error}") from error


def _second_name(path: Path, name: Path) -> None:
    """Gives the file a second name, which may belong to another file until then. The first name stays valid throughout."""
    part = name.with_name(name.name + ".part")
    part.unlink(missing_ok=True)
    try:
        os.link(path, part)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, part)
    os.replace(part, name)


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


class Claim:
    """Locks a file, as a sign that its directory is in use, until `release` or the end of the process. Two runs that write
    the same client memory would destroy it.

    `flock` locks an open file: it keeps out other processes and other threads of this one. The table of claims closes the
    file in forked processes, because a worker that outlives its run must not hold the lock.
    """

    held: ClassVar[dict[Path, int]] = {}  # locked file -> its descriptor, of all claims of this process
    guard: ClassVar[threading.RLock] = threading.RLock()  # reentrant: a garbage collection may release a claim at any moment

    def __init__(self, path: Path, otherwise: str) -> None:
        """otherwise: the message if somebody else holds the lock."""
        self.path, self.folder = path.resolve(), path.parent
        self._busy = Busy(f"out: {otherwise} in {path.parent}")
        with Claim.guard:
            if self.path in Claim.held:
                raise self._busy
            Claim.held[self.path] = self._locked()
        self.release = weakref.finalize(self, _release, self.path, Claim.held[self.path])

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _locked(self) -> int:
        file: int = guarded(self.path, lambda: os.open(self.path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o600))
        if fcntl is None:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):  # other errors: the file system has no locks
                os.close(file)
                raise self._busy from None
        return file


def _release(path: Path, file: int) -> None:
    """Gives a claim back. In a forked process there is nothing to give back: its copy of the file is closed already."""
    with Claim.guard:
        if Claim.held.get(path) == file:
            del Claim.held[path]
            if fcntl is not None:  # a process that was forked a moment ago may still have the file open
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _forget_claims() -> None:
    """In a forked process: closes the files that the parent has locked. The parent keeps its locks."""
    Claim.guard = threading.RLock()
    for file in Claim.held.values():
        os.close(file)
    Claim.held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_claims)


# JSON with a checksum --------------------------------------------------------------------------------------------------

CHECKSUM = "checksum"  # the key that holds it


def sealed(value: Mapping[str, Any], **how: Any) -> str:
    """The value as JSON, with a checksum of all else as its last entry. how: options of json.dumps."""
    return json.dumps({**value, CHECKSUM: _checksum(value)}, **how)


def unsealed(text: str | bytes) -> dict[str, Any]:
    """What `sealed` wrote, without the checksum. A value without one is from an older version. Raises ValueError if it is
    damaged."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    found = value.pop(CHECKSUM, None)
    if found is not None and found != _checksum(value):
        raise ValueError("its checksum is wrong")
    return value


def _checksum(value: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(value).encode()):08x}"


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"study: {path} is not a TOML file: {' '.join(str(error).split())}") from None
