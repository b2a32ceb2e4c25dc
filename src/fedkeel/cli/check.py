"""`fedkeel check`: the laws, applied to one method."""

from __future__ import annotations

from typing import Any

from fedkeel.cli.tables import console


def check_method(name: str, hyperparameters: dict[str, Any]) -> bool:
    """Prints every law and what is wrong. Returns True if the method obeys all of them."""
    from fedkeel.laws.method_laws import check

    found, screen = check(name, **hyperparameters), console()
    for law, wrong in found.items():
        screen.print(f"{'ok    ' if wrong is None else 'BROKEN'} {law}", soft_wrap=True)
        if wrong is not None:
            screen.print(f"       {wrong}", soft_wrap=True)
    broken = sum(wrong is not None for wrong in found.values())
    screen.print(f"{name}: {len(found) - broken} of {len(found)} laws hold")
    return broken == 0
