"""How a setting is declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


def setting(
    default: Any,
    help: str,
    *,
    group: str,
    example: Any,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
    choices: Sequence[str] = (),
    also: Sequence[Any] = (),
    filled: Any = None,
    allowed: str = "",
) -> Any:
    """Declares a setting.

    group: its heading in the help.  example: a value that the help shows.
    least, above, below, most: the allowed range, as in `hp`.  choices: the allowed words.  also: further allowed values.
    filled: for a setting that is None by default: the value that takes the place of None where one is needed.
    allowed: what is allowed in words, if the range and the type do not say it.
    """
    about = {"doc": help, "group": group, "example": example, "also": tuple(also), "filled": filled, "allowed": allowed}
    about |= {"least": least, "above": above, "below": below, "most": most, "choices": tuple(choices)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=about)
    return dataclasses.field(default=default, metadata=about)
