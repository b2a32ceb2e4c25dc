"""Small problems that tests share. Those of the laws are part of the package, because `fedkeel check` needs them."""

from __future__ import annotations

from fedkeel.laws.method_laws import full_only
from fedkeel.laws.problems import (
    copy_record,
    digits_fed,
    half_square,
    linear_clients,
    linear_model,
    minimiser,
    quadratic,
    same_record,
    small_net,
)

__all__ = [
    "copy_record",
    "digits_fed",
    "full_only",
    "half_square",
    "linear_clients",
    "linear_model",
    "minimiser",
    "quadratic",
    "same_record",
    "small_net",
]
