"""Methods that need all clients in every round."""

from __future__ import annotations

from fedkeel.core.algorithm import Plan


def need_everyone(name: str, p: Plan, allow_partial: bool) -> None:
    """Refuses a run in which some clients sit out, unless the user allows it (docs/methods.md, rule R15)."""
    fewest = p.S if p.fewest is None else p.fewest
    if fewest < p.N and not allow_partial:
        raise ValueError(
            f"{name}: a cohort of {fewest} is not allowed; it must be all {p.N} clients, or set allow_partial=True"
        )
