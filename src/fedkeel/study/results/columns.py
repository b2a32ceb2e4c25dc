"""The columns of a study's table: their names, what a run needs to have them, and of which less is better."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fedkeel.core.algorithm import lookup
from fedkeel.errors import nearest
from fedkeel.study.results.numbers import ACCURACIES, target_name

if TYPE_CHECKING:
    from fedkeel.study.study import Branch

# What runs measure if they are asked to: columns, by the name in `metrics`.
MEASURED = {
    "train": ("final_train_set_loss", "final_train_accuracy", "final_objective"),
    "gradient_norm": ("final_gradient_norm", "least_gradient_norm", "mean_gradient_norm"),
    "consistency": ("final_consistency",),
    "drift": ("final_drift", "final_cosine"),
    "tracking": ("final_tracking_error", "final_tracking_bias"),
    "qp": ("final_qp_violated", "final_qp_turned", "final_qp_residual"),
}
ALWAYS = (*ACCURACIES, "rounds_to_best", "final_train_loss", "floats", "up", "dropped", "seconds", "memory_mb")
COLUMNS = (*ALWAYS, "cost", "final_client_accuracy", *(column for columns in MEASURED.values() for column in columns))
NAMES = {
    "last10_accuracy": "accuracy, mean of last 10 rounds",
    "accuracy": "test accuracy",
    "train_loss": "mean local training loss",
    "train_set_loss": "loss on all training data",
    "train_accuracy": "accuracy on all training data",
    "client_accuracy": "accuracy with the clients' own layers",
    "objective": "objective on all training data",
    "consistency": "consistency term",
    "drift": "client drift",
    "cosine": "cosine of client and mean update",
    "qp_violated": "violated constraints",
    "qp_turned": "relative change by the projection",
    "qp_residual": "residual of the projection",
    "cost_to_target": "paper's cost to target",
    "least_gradient_norm": "least gradient norm",
    "mean_gradient_norm": "gradient norm, mean over rounds",
    "dropped": "dropped answers",
}
TARGETS = r"(target|second|third|target_\d+)"
OF_TARGET = (re.compile(rf"(rounds|floats|up|cost)_to_{TARGETS}"), re.compile(rf"(at)_{TARGETS}_accuracy"))


def label_of(column: str) -> str:
    """What people read for a column of tables and plots; of a `final_...` the same as over its curve."""
    of_curve = column.removeprefix("final_")
    if column in ACCURACIES or of_curve not in NAMES:
        return NAMES.get(column, column.replace("_", " "))
    return "final " * (of_curve != column) + NAMES[of_curve]


def of_target(name: str) -> tuple[str, str] | None:
    """(what is counted, end of the target's columns) of a column that is about a target."""
    found = next(filter(None, (pattern.fullmatch(name) for pattern in OF_TARGET)), None)
    return None if found is None else (found[1], found[2])


def is_column(name: str) -> bool:
    return name in COLUMNS or of_target(name) is not None


def check_column(where: str, name: str) -> None:
    """Raises if no study can have such a column."""
    if not is_column(name):
        known = [*COLUMNS, *(f"{kind}_to_{z}" for kind in ("rounds", "floats", "up", "cost") for z in ("target", "second"))]
        raise ValueError(f"{where} = {name!r} is not allowed{nearest(name, known)}")


def better_is_less(name: str) -> bool:
    """Of losses, costs, distances: of all but accuracies and the cosine."""
    return not name.endswith(("accuracy", "cosine"))


def needs(name: str, branch: Branch, target_on: str) -> str | None:
    """What the runs of a branch lack to have a column, in words; None if nothing."""
    config, kind = branch.config, name
    if about := of_target(name):
        kind, end = about
        if end not in map(target_name, range(len(branch.targets))):
            return "a target" if end == "target" else "more targets, target = [0.8, 0.9]"
        if kind == "at" and target_on == "test_accuracy":
            return "target_on = 'train_accuracy'"
    metric = next((metric for metric, columns in MEASURED.items() if name in columns), None)
    if metric and metric not in config.metrics:
        return f"metrics = [{metric!r}]"
    if name == "final_objective" and not config.weight_decay and "weight_decay" not in branch.grid:
        return "weight_decay > 0 (without it, final_train_set_loss is the objective)"
    if name == "final_client_accuracy" and not lookup(config.algorithm).facts.private:
        return "a method with layers of its own at every client, such as fedbn"
    if kind == "cost" and branch.cost is None:
        return "a cost in the method's table"
    return None
