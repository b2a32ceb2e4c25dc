"""The signature of a finished run: the server signs what it wrote, and anybody with its public key can check it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedkeel.deploy import audit
from fedkeel.deploy.keys import as_pem, fingerprint, is_signed, private_key, public_key, public_key_in, sign
from fedkeel.engine.state.directory import CONFIG, HISTORY, MODEL, SUMMARY
from fedkeel.errors import Damaged
from fedkeel.files import write_atomically

FILE = "signature.json"
SIGNED = (CONFIG, HISTORY, MODEL, SUMMARY, audit.FILE)


def write_signature(folder: Path, key_file: str | Path) -> None:
    """Signs the files of the run in a directory."""
    key = private_key(key_file)
    signed: dict[str, Any] = {"format": "fedkeel-signature-1", "files": _digests(folder)}
    made = {**signed, "public_key": as_pem(key.public_key()), "signature": sign(key, _content(signed))}
    write_atomically(folder / FILE, json.dumps(made, indent=1).encode())


def verify(folder: Path, key_file: Path | None = None) -> list[str]:
    """Raises ValueError if the run in a directory is not what its server signed. Returns what was checked, in words.

    key_file: the server's public key or certificate. Without it, the key in the directory is used, which shows that the
    files belong together, but not who wrote them.
    """
    try:
        made = json.loads((folder / FILE).read_bytes())
        signed = {"format": made["format"], "files": dict(made["files"])}
        pem, signature = str(made["public_key"]), str(made["signature"])
    except OSError as error:
        raise ValueError(f"verify: {folder} has no signature: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Damaged(f"verify: {folder / FILE} is damaged") from None
    key = public_key_in(pem.encode(), folder / FILE) if key_file is None else public_key(key_file)
    if not is_signed(key, signature, _content(signed)):
        by = "its own key" if key_file is None else f"the key in {key_file}"
        raise Damaged(f"verify: {folder} was not signed with {by}")
    found = _digests(folder)
    for name, digest in signed["files"].items():
        if found.get(name) != digest:
            raise Damaged(f"verify: {folder / name} is {'missing' if name not in found else 'not what the server signed'}")
    _, lines = audit.check_chain(folder / audit.FILE)
    whose = f"key {fingerprint(key)}" + ("" if key_file else ", which nobody vouches for: pass --key with the server's")
    return [f"signed with {whose}", f"{len(found)} files are as they were signed", f"the audit log has {lines} whole lines"]


def _digests(folder: Path) -> dict[str, str]:
    present = [name for name in SIGNED if (folder / name).exists()]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in present}


def _content(signed: dict[str, Any]) -> bytes:
    return json.dumps(signed, sort_keys=True).encode()
