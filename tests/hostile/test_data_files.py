"""Mutated data files: each is read, or refused in one line that begins with "data:". `make attack` makes 3,000."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.data.readers import json_lines
from fedkeel.data.readers.file_contents import numpy_archive
from fedkeel.data.readers.idx import idx
from fedkeel.data.readers.pictures import pixels
from fedkeel.data.readers.safe_pickle import unpickled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
COUNT = int(os.environ.get("FEDKEEL_MUTATIONS", "30"))  # per format


def a_table() -> bytes:
    rows = "".join(f"{i},{i % 7 / 3},{'xyz'[i % 3]},{i % 2}\n" for i in range(30))
    return f"a,b,c,label\n{rows}".encode()


def texts() -> bytes:
    return "".join(json.dumps({"text": f"text {i}", "label": i % 2}) + "\n" for i in range(20)).encode()


def images() -> bytes:
    return bytes([0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 4, 0, 0, 0, 4]) + bytes(range(96))


def archive() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, image=np.arange(96, dtype=np.uint8).reshape(6, 4, 4), label=np.arange(6))
    return file.getvalue()


def picture() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, "PNG")
    return file.getvalue()


FORMATS: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "csv": ("a.csv", a_table(), fk.from_csv),
    "csv.gz": ("a.csv.gz", gzip.compress(a_table()), fk.from_csv),
    "jsonl": ("a.jsonl", texts(), lambda path: json_lines._json_samples(path, str)),
    "idx": ("a-idx3-ubyte", images(), idx),
    "idx.gz": ("a-idx3-ubyte.gz", gzip.compress(images()), idx),
    "npz": ("a.npz", archive(), numpy_archive),
    "png": ("a.png", picture(), pixels),
    "pickle": (
        "a.pkl",
        pickle.dumps({b"data": np.zeros((4, 6), np.uint8), b"labels": [1, 2]}, 2),
        lambda path: unpickled(path.read_bytes(), path),
    ),
}


def mutated(content: bytes, rng: random.Random) -> bytes:
    made = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        way, place = rng.randrange(6), rng.randrange(max(1, len(made)))
        if way == 0 and made:
            made[place % len(made)] ^= 1 << rng.randrange(8)
        elif way == 1:
            del made[place:]
        elif way == 2:
            made[place:place] = rng.randbytes(rng.randrange(1, 40))
        elif way == 3:
            del made[place : place + rng.randrange(1, 40)]
        elif way == 4:
            made[place:place] = made[: rng.randrange(1, 60)]
        else:
            made[place : place + 4] = rng.choice(
                [b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff", b'",,"', b"\n\n\r\n", b"nan,"]
            )
    return bytes(made)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FORMATS)
def test_a_mutated_file_is_read_or_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    name, content, read = FORMATS[kind]
    refused, bad = 0, []
    for number in range(COUNT):
        path = tmp_path / name
        path.write_bytes(mutated(content, random.Random(f"{kind} {number}")))
        try:
            read(path)
        except ValueError as error:
            refused += 1
            if "\n" in str(error) or not str(error).startswith(("data: ", "schema: ")):
                bad.append((number, repr(error)))
        except Exception as error:
            bad.append((number, repr(error)))
    assert not bad, f"{len(bad)}: {bad[:5]}"
    assert refused, "some files are too damaged to be read"
