"""A cohort for every round: lists of client ids, or a function of the round."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from fedkeel.core.hyperparameters import python_number
from fedkeel.errors import refuse


def from_lists(value: Any) -> list[list[int]]:
    """The client ids of every round, in Python's own numbers."""
    try:
        return [[operator.index(i) for i in ids] for ids in value]
    except TypeError:
        raise refuse(
            "cohort", value, "a count (10), a fraction (0.1), a list of client ids per round, or a function of the round"
        ) from None


def from_function(function: Callable[[int], Any], rounds: int) -> list[Any]:
    """What the user's function returns for every round: client ids, a count or a fraction."""
    found: list[Any] = []
    for t in range(rounds):
        value = python_number(function(t))
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(value)
            continue
        try:
            found.append([operator.index(i) for i in value])
        except TypeError:
            what = f"{value!r} for round {t}"
            raise ValueError(f"cohort: the function returned {what}; it must be client ids, a count or a fraction") from None
    return found


def check(cohort: Sequence[Any], rounds: int, N: int) -> None:
    """Raises if the list is too short, or if a round does not fit N clients."""
    if len(cohort) < rounds:
        raise ValueError(f"cohort: the list has {len(cohort)} rounds, the run {rounds}")
    for t, ids in enumerate(cohort):
        if isinstance(ids, int | float):
            if not (1 <= ids <= N if isinstance(ids, int) else 0 < ids <= 1):
                raise ValueError(f"cohort: round {t} has {ids!r}; it must be from 1 to {N}, or a fraction up to 1.0")
            continue
        if not len(ids) or len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= N:
            raise ValueError(f"cohort: round {t} must name different clients from 0 to {N - 1}, not {list(ids)}")
