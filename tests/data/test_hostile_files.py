"""Files that were made to do harm: bombs, crafted pickles, endless nesting. The error names the file, in one line."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.data.readers import file_contents
from fedkeel.data.readers.cifar import archive
from fedkeel.data.readers.file_contents import contents, numpy_archive
from fedkeel.data.readers.json_lines import train_and_test
from fedkeel.data.readers.pictures import pixels
from fedkeel.data.readers.safe_pickle import unpickled

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_contents, "HARMLESS", 1 << 20)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("packing", ["gz", "xz", "tar.gz", "npz"])
def test_a_decompression_bomb_is_refused(tmp_path: Path, packing: str) -> None:
    """A few kilobytes that unpack to 64 MB."""
    import lzma

    path, zeros = tmp_path / f"bomb.{packing}", bytes(1 << 26)
    if packing == "gz":
        path.write_bytes(gzip.compress(zeros))
    elif packing == "xz":
        path.write_bytes(lzma.compress(zeros))
    elif packing == "npz":
        np.savez_compressed(path, image=np.zeros(1 << 26, dtype=np.uint8))
    else:
        with tarfile.open(path, "w:gz") as tar:
            info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
            info.size = len(zeros)
            tar.addfile(info, io.BytesIO(zeros))
    read: Any = {"npz": numpy_archive, "tar.gz": lambda path: archive(path, {}, "labels")}.get(packing, contents)
    assert path.stat().st_size < 1 << 19
    with pytest.raises(ValueError, match=r"bomb\..* cannot be read.*unpacks to"):
        read(path)


def png(width: int, height: int) -> bytes:
    """The beginning of a PNG of this size, with one packed row of zeros."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(width))) + chunk(b"IEND", b"")


def test_a_picture_bomb_is_refused_and_the_guard_of_pillow_stays_on(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "bomb.png"
    path.write_bytes(png(30_000, 30_000))
    with pytest.raises(ValueError, match=r"bomb\.png cannot be read.*DecompressionBombError"):
        pixels(path)
    assert Image.MAX_IMAGE_PIXELS is not None


class Crafted:
    """Pickles as any call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "value",
    [
        Crafted(np.dtype, ("O",)),
        Crafted(np.dtype, ("f8", False, True), (3, "<", None, ("a",), {"a": (np.dtype("f8"), 1 << 40)}, 8, 8, 0)),
        Crafted(np.dtype, ("V999999",)),
        np.array([{}, []], dtype=object),
        np.zeros(3, dtype=[("a", "f8"), ("b", "i4")]),
    ],
    ids=["objects", "fields", "void", "array of objects", "structured"],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_crafted_dtype_does_not_pass(value: Any, protocol: int) -> None:
    with pytest.raises(ValueError, match="which no file of arrays needs"):
        unpickled(pickle.dumps({b"data": value}, protocol), Path("x"))


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "f8", "?"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_honest_arrays_come_through(dtype: str, protocol: int, order: Any) -> None:
    z = np.arange(24).reshape(4, 6).astype(dtype, order=order)
    back = unpickled(pickle.dumps({b"data": z, b"labels": [1, 2], "t": (z[:1].copy(),)}, protocol), Path("x"))
    assert back[b"data"].dtype == z.dtype
    assert np.array_equal(back[b"data"], z)
    assert np.array_equal(back["t" if "t" in back else b"t"][0], z[:1])
    assert back[b"labels"] == [1, 2]


def test_an_array_that_is_longer_than_its_bytes() -> None:
    text = pickle.dumps({b"data": np.zeros(4, dtype=np.uint8)}, 2).replace(b"K\x04\x85", b"K\x7f\x85")
    with pytest.raises(ValueError, match=r"shape \[127\] has 4 bytes"):
        unpickled(text, Path("x"))


def test_nesting_without_end(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(ValueError, match=r"deep\.jsonl cannot be read.*RecursionError"):
        train_and_test(path, path)


def test_an_empty_file_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    with pytest.raises(ValueError, match=r"empty\.jsonl cannot be read.*it is empty"):
        train_and_test(path, path)


def test_a_table_with_an_endless_cell(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("a,b\n1,0\n" + "9" * 200_000 + ",1\n")
    with pytest.raises(ValueError, match=r"long\.csv cannot be read.*field larger than field limit"):
        fk.from_csv(path)


def test_an_array_that_no_memory_can_hold(tmp_path: Path) -> None:
    path, header = tmp_path / "huge.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("image.npy", header.getvalue())
    with pytest.raises(ValueError, match=r"huge\.npz cannot be read"):
        numpy_archive(path)


def test_labels_that_no_array_can_hold(tmp_path: Path) -> None:
    folder = tmp_path / "20newsgroups"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / f"{part}.jsonl").write_text(json.dumps({"text": "a", "label": 10**30}) + "\n")
    with pytest.raises(ValueError, match=r"train\.jsonl cannot be read.*OverflowError"):
        fk.load("20newsgroups", tmp_path)


def test_a_picture_with_a_broken_chunk(tmp_path: Path) -> None:
    """Its first IDAT says that it is empty, so Pillow takes pixels for the name of a chunk and raises a SyntaxError."""
    path, whole = tmp_path / "broken.png", bytearray(png(64, 64))
    place = whole.index(b"IDAT")
    whole[place - 4 : place] = bytes(4)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"broken\.png cannot be read"):
        pixels(path)
