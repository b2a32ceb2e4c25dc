"""Checksums of the bytes of a run: XXH3, which is several times as fast as CRC-32.

They find damage. They are no protection against somebody who changes a file on purpose.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import xxhash
from torch import Tensor

CRC_DIGITS = 8  # files from before XXH3 have a CRC-32


def number_of(content: Any) -> int:
    """The checksum of a buffer of bytes as a number that fits into int64."""
    return xxhash.xxh3_64_intdigest(content) >> 1


def checksum(z: Tensor) -> str:
    """A checksum of a tensor on the CPU: its dtype, its shape and its bytes."""
    return f"{_form(z)} {number_of(_bytes(z)):016x}"


def fits(z: Tensor, expected: str) -> bool:
    """Does the tensor have this checksum?"""
    if len(expected.rpartition(" ")[2]) == CRC_DIGITS:
        return expected == f"{_form(z)} {zlib.crc32(_bytes(z)):08x}"
    return expected == checksum(z)


def _form(z: Tensor) -> str:
    return f"{z.dtype} {list(z.shape)}"


def _bytes(z: Tensor) -> Any:
    return z.reshape(-1).view(torch.uint8).numpy().data if z.numel() else b""
