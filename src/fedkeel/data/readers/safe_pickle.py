"""Pickles of arrays, read by an unpickler that cannot run code."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

from fedkeel.data.readers.file_contents import reading

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
    """Makes plain values and arrays. It refuses every other name, so a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SAFE:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no file of arrays needs")
        return super().find_class(re.sub(r"^numpy\.core\b", "numpy._core", module), name)


def unpickled(data: bytes, path: Path) -> Any:
    """The arrays, lists, numbers and texts of a pickle.  path: for the error message."""
    with reading(path):
        return _OnlyArrays(io.BytesIO(data), encoding="bytes").load()
