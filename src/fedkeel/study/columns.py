"""The columns of a study's table: their names, what a run needs to have them, and of which less is better."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fedkeel.config import RunConfig
from fedkeel.core.algorithm import lookup, nearest
from fedkeel.study.numbers import ACCURACIES, target_name

# What runs measure if they are asked to: columns, by the name in `metrics`.
MEASURED = {
    "train": ("final_train_set_loss", "final_train_accuracy", "final_objective"),
    "gradient_norm": ("final_gradient_norm",),
    "consistency": ("final_consistency",),
    "drift": ("final_drift", "final_cosine"),
    "tracking": ("final_tracking_error", "final_tracking_bias"),
    "qp": ("final_qp_violated", "final_qp_turned", "final_qp_residual"),
}
ALWAYS = (*ACCURACIES, "final_train_loss", "floats", "up", "seconds", "memory_mb")
COLUMNS = (*ALWAYS, "cost", "final_client_accuracy", *(column for columns in MEASURED.values() for column in columns))
MORE = (*ACCURACIES, "final_train_accuracy", "final_client_accuracy", "final_cosine")  # of all others, less is better
TO_TARGET = re.compile(r"(rounds|floats|up|cost)_to_(target|second|third|target_\d+)")


def is_column(name: str) -> bool:
    return name in COLUMNS or TO_TARGET.fullmatch(name) is not None


def check_column(where: str, name: str) -> None:
    """Raises if no study can have such a column."""
    if not is_column(name):
        known = [*COLUMNS, *(f"{kind}_to_{z}" for kind in ("rounds", "floats", "up", "cost") for z in ("target", "second"))]
        raise ValueError(f"{where} = {name!r} is not allowed{nearest(name, known)}")


def better_is_less(name: str) -> bool:
    return name not in MORE


def needs(name: str, config: RunConfig, grid: Sequence[str], targets: Sequence[float], cost: Any) -> str | None:
    """What a run with these settings and a grid of these keys lacks to have a column, in words; None if nothing."""
    if found := TO_TARGET.fullmatch(name):
        name, end = found.groups()
        if end not in map(target_name, range(len(targets))):
            return "a target" if end == "target" else "more targets, target = [0.8, 0.9]"
    metric = next((metric for metric, columns in MEASURED.items() if name in columns), None)
    if metric and metric not in config.metrics:
        return f"metrics = [{metric!r}]"
    if name == "final_objective" and not config.weight_decay and "weight_decay" not in grid:
        return "weight_decay > 0 (without it, final_train_set_loss is the objective)"
    if name == "final_client_accuracy" and not lookup(config.algorithm).facts.private:
        return "a method with layers of its own at every client, such as fedbn"
    if name == "cost" and cost is None:
        return "a cost in the method's table"
    return None
