"""Pickles of arrays, read by an unpickler that cannot run code.

Arrays and dtypes in a pickle are made by functions of numpy, which trust their arguments: a crafted dtype could make them
read memory that is not theirs. So the unpickler puts its own classes in their place, which check everything, and makes the
arrays itself.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.data.readers.file_contents import reading

KINDS = "biuf"  # bool, whole numbers, floating-point numbers


def _refuse(what: str) -> pickle.UnpicklingError:
    return pickle.UnpicklingError(f"it asks for {what}, which no file of arrays needs")


class _Dtype:
    """In the place of numpy.dtype: only dtypes of plain numbers."""

    def __init__(self, name: object, *_: object) -> None:
        if isinstance(name, bytes):
            name = name.decode("ascii")
        if not isinstance(name, str) or name[:1] not in KINDS or not name[1:].isdigit() or len(name) > 4:
            raise _refuse(f"the dtype {str(name)[:40]!r}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "=") or any(z is not None for z in state[2:5]):
            raise _refuse("a dtype with fields")
        self.dtype = self.dtype.newbyteorder(">" if order == ">" else "<")


class _Array:
    """In the place of numpy.ndarray: remembers what the pickle says, for `made`."""

    array: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        self.array = _filled(content, dtype, shape, "F" if fortran else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    found = _Array()
    found.array = _filled(content, dtype, shape, order)
    return found


def _filled(content: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    if isinstance(content, str):  # Python 2 wrote bytes as text
        content = content.encode("latin1")
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes | bytearray) or order not in ("C", "F"):
        raise _refuse("an array of objects")
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise _refuse("an array without a shape")
    if len(content) != math.prod(shape) * dtype.dtype.itemsize:
        raise pickle.UnpicklingError(f"an array of shape {list(shape)} has {len(content)} bytes")
    return np.frombuffer(bytearray(content), dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """In the place of codecs.encode: Python 3 writes bytes for Python 2 as text in Latin-1."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _refuse(f"the encoding {str(encoding)[:40]!r}")
    return text.encode("latin1")


MAKERS: dict[str, Any] = {"dtype": _Dtype, "ndarray": _Array, "_reconstruct": _reconstruct, "_frombuffer": _from_buffer}
SAFE = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
}


class _OnlyArrays(pickle.Unpickler):
    """Makes plain values and arrays. It refuses every other name, so a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _encode
        if (module, name) not in SAFE:
            raise _refuse(f"{module}.{name}")
        return MAKERS[name]


def _made(value: Any) -> Any:
    """The value with numpy's arrays in the place of ours."""
    if isinstance(value, _Array):
        if value.array is None:
            raise _refuse("an array without content")
        return value.array
    if isinstance(value, dict):
        return {key: _made(z) for key, z in value.items()}
    return type(value)(_made(z) for z in value) if isinstance(value, list | tuple) else value


def unpickled(data: bytes, path: Path) -> Any:
    """The arrays, lists, numbers and texts of a pickle.  path: for the error message."""
    with reading(path):
        return _made(_OnlyArrays(io.BytesIO(data), encoding="bytes").load())
