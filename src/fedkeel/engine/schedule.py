"""Learning-rate schedules: the local learning rate of round t is lr * factor(t).

Importing this module loads neither torch nor numpy: the settings use it to check a schedule's name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

from fedkeel.errors import refuse

Factor = Callable[[int], float]
STEP = 0.1  # "step:30,60" multiplies the learning rate by this at rounds 30 and 60
ALLOWED = (
    "'constant', 'cosine', 'step:30,60' (rounds at which the learning rate becomes a tenth), 'warmup:5' (rounds until the "
    "full learning rate), 'warmup:5+cosine', or in Python a function of the round that returns a factor > 0"
)


def check_schedule(value: Any) -> None:
    """Raises if it is neither a function nor the name of a schedule."""
    if callable(value) and not isinstance(value, type):
        return
    if not isinstance(value, str):
        raise refuse("lr_schedule", value, ALLOWED)
    _named(value, 1)


def factors(value: str | Factor, rounds: int) -> Factor:
    """The function from a round to the factor of its learning rate."""
    if isinstance(value, str):
        return _named(value, rounds)

    def checked(t: int) -> float:
        try:
            factor = float(value(t))
        except (TypeError, ValueError) as error:
            raise ValueError(f"lr_schedule: it must return a number for round {t}: {error}") from error
        if not 0 < factor < math.inf:
            raise ValueError(f"lr_schedule: it returns {factor} for round {t}; a factor must be > 0 and finite")
        return factor

    return checked


def _named(name: str, rounds: int) -> Factor:
    """A schedule by its name. Parts joined by + are multiplied."""
    parts = [_part(part.strip(), rounds, name) for part in name.split("+")]
    return lambda t: math.prod(part(t) for part in parts)


def _part(text: str, rounds: int, name: str) -> Factor:
    kind, _, numbers = text.partition(":")
    try:
        at = [int(number) for number in numbers.split(",")] if numbers else []
    except ValueError:
        raise refuse("lr_schedule", name, ALLOWED) from None
    if kind == "constant" and not numbers:
        return lambda t: 1.0
    if kind == "cosine" and not numbers:  # the round after the last one would have 0
        return lambda t: 0.5 * (1 + math.cos(math.pi * t / rounds))
    if kind == "step" and at and min(at) >= 1:
        return lambda t: STEP ** sum(t >= start for start in at)
    if kind == "warmup" and len(at) == 1 and at[0] >= 1:
        return lambda t: min(1.0, (t + 1) / at[0])
    raise refuse("lr_schedule", name, ALLOWED)


def schedule_identity(value: str | Factor, rounds: int, t: int) -> str | None:
    """What must stay the same if a run resumes at round t: the factors of the rounds before."""
    if value == "constant":
        return None
    if isinstance(value, str):
        return f"{value} over {rounds} rounds" if "cosine" in value else value
    factor = factors(value, rounds)
    past = repr([factor(round_) for round_ in range(t)])
    return f"a function with factors {hashlib.sha256(past.encode()).hexdigest()[:8]} before round {t}"
