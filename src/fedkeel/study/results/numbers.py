"""The numbers of a run, their means and deviations over seeds, and the columns of the table that show them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fedkeel.core.algorithm import lookup
from fedkeel.errors import nearest

if TYPE_CHECKING:
    from fedkeel.study.study import Branch

Row = dict[str, Any]
NOT_RUN = "it has not been run"  # the error of a run that has not been started or is not complete
SCORE_OF = {"test_accuracy": "final_accuracy"}  # columns of the history whose column in the table is not final_COLUMN
LAST = 10  # rounds: `last10_accuracy` is the mean of their evaluations
ACCURACIES = ("final_accuracy", "best_accuracy", "last10_accuracy")
MEANT_OVER_ROUNDS = ("gradient_norm",)  # Theorems bound the least or the mean over rounds.
# Columns of the history that are not measurements of the model.
OTHER = (
    "round",
    "up",
    "down",
    "warmup_up",
    "warmup_down",
    "bytes_up",
    "bytes_down",
    "up_bytes",
    "down_bytes",
    "warmup_up_bytes",
    "warmup_down_bytes",
    "clients",
    "dropped",
    "faults",
    "seconds",
    "clock_seconds",
    "test_accuracy",
    "test_loss",
)


@dataclass
class Outcome:
    """The result of a run: a history, or an error."""

    method: str
    seed: int
    history: list[Row]
    error: str | None = None
    memory_mb: float | None = None
    made_with: Mapping[str, str] = field(default_factory=dict)  # versions and machine

    @property
    def accuracies(self) -> list[float]:
        return measured(self.history, "test_accuracy")


def measured(history: Sequence[Row], column: str) -> list[float]:
    """The values of a column in the rounds that have one."""
    return [row[column] for row in history if row.get(column) is not None]


def floats_sent(history: Sequence[Row], ways: tuple[str, ...] = ("up", "down")) -> list[float]:
    """For every round: floats that a client which takes part in every round has sent and received until its end."""
    return list(accumulate(float(sum(row[way] + row.get(f"warmup_{way}", 0) for way in ways)) for row in history))


def bytes_sent(history: Sequence[Row]) -> list[float] | None:
    """As `floats_sent`, in bytes as they travel. None for runs of versions that did not count them."""
    if not all("up_bytes" in row for row in history):
        return None
    names = [f"{when}{way}_bytes" for when in ("", "warmup_") for way in ("up", "down")]
    return list(accumulate(float(sum(row.get(name, 0) for name in names)) for row in history))


def first_at(history: Sequence[Row], target: float, column: str = "test_accuracy") -> int | None:
    """The number of rounds until a column first reaches the target, or None."""
    reached = (t for t, row in enumerate(history, 1) if row.get(column) is not None and row[column] >= target)
    return next(reached, None)


def target_name(number: int) -> str:
    """The end of the columns' names for the first, second, ... target of a study."""
    return ("target", "second", "third")[number] if number < 3 else f"target_{number + 1}"


def of_run(outcome: Outcome, targets: Sequence[float], on: str = "test_accuracy", cost: float | None = None) -> Row:
    """The numbers of a run. cost: a paper's count of communication per round."""
    history, scores = outcome.history, outcome.accuracies
    found: Row = {"final_accuracy": scores[-1], "best_accuracy": max(scores)} if scores else {}
    if scores:
        found["last10_accuracy"] = statistics.fmean(measured(history[-LAST:], "test_accuracy") or scores[-1:])
        found["rounds_to_best"] = first_at(history, max(scores))
    elif losses := measured(history, "test_loss"):  # regression, or another task without classes
        found |= {"final_test_loss": losses[-1], "least_test_loss": min(losses)}
    if held_out := measured(history, "val_accuracy"):
        found["best_val_accuracy"] = max(held_out)
    elif losses := measured(history, "val_loss"):
        found["least_val_loss"] = min(losses)
    for column in [key for key in history[-1] if key not in OTHER]:
        if isinstance(history[-1][column], int | float):
            found[f"final_{column}"] = history[-1][column]
    for column in [key for key in MEANT_OVER_ROUNDS if key in history[-1]]:
        values = measured(history, column)
        found |= {f"least_{column}": min(values), f"mean_{column}": statistics.fmean(values)}
    both, up = floats_sent(history), floats_sent(history, ("up",))
    found |= {"floats": both[-1], "up": up[-1], "seconds": sum(row["seconds"] for row in history)}
    sent = bytes_sent(history)
    if sent is not None:
        found["bytes"] = sent[-1]
    if cost is not None:
        found["cost"] = len(history) * cost
    if "clock_seconds" in history[-1]:
        found["hours"] = history[-1]["clock_seconds"] / 3600
    found["dropped"] = sum(row["dropped"] + len(row.get("warmup_faults", ())) for row in history)
    if outcome.memory_mb is not None:
        found["memory_mb"] = outcome.memory_mb
    for number, target in enumerate(targets):
        rounds, name = first_at(history, target, on), target_name(number)
        if rounds is not None:
            found |= {f"rounds_to_{name}": rounds, f"floats_to_{name}": both[rounds - 1], f"up_to_{name}": up[rounds - 1]}
            if cost is not None:
                found[f"cost_to_{name}"] = rounds * cost
            if sent is not None:
                found[f"bytes_to_{name}"] = sent[rounds - 1]
            if "hours" in found:
                found[f"hours_to_{name}"] = history[rounds - 1]["clock_seconds"] / 3600
            if on != "test_accuracy" and history[rounds - 1].get("test_accuracy") is not None:
                found[f"at_{name}_accuracy"] = history[rounds - 1]["test_accuracy"]
    return found


def summarise(
    method: str,
    outcomes: Sequence[Outcome],
    targets: Sequence[float],
    rounds: int,
    on: str = "test_accuracy",
    cost: float | None = None,
) -> Row:
    """The row of a method: means and sample deviations over its seeds.

    Numbers until a target exist only if all seeds reached it. `reached_...` are over the seeds that did.
    """
    good = [outcome for outcome in outcomes if outcome.error is None]
    runs = [of_run(outcome, targets, on, cost) for outcome in good]
    row: Row = {"method": method, "seeds": len(good), "rounds": rounds, "target_on": on}
    for name in map(target_name, range(len(targets))):
        there = [run for run in runs if f"rounds_to_{name}" in run]
        row[f"reached_{name}"] = len(there)
        also = [kind for kind in ("bytes", "hours") if any(kind in run for run in runs)]
        for kind in ["rounds", "floats", "up", *["cost"] * (cost is not None), *also]:
            row |= moments(f"{kind}_to_{name}", runs)
            row |= {f"reached_{key}": z for key, z in moments(f"{kind}_to_{name}", there).items()}
    for name in (*ACCURACIES, "floats", "up", "dropped", "seconds", "memory_mb"):
        row |= moments(name, runs)
    for name in dict.fromkeys(key for run in runs for key in run):
        if name not in row:
            row |= moments(name, runs)
    row["errors"] = {outcome.seed: outcome.error for outcome in outcomes if outcome.error is not None}
    return row


# What decides between methods, the first that the runs have: validation data before test data, accuracies before losses.
DECIDING = ("val_accuracy", "test_accuracy", "val_loss", "test_loss", "train_loss")


def deciding_score(rows: Sequence[Row]) -> str:
    """The column of the rows by which the methods of a study are compared."""
    columns = [SCORE_OF.get(column, f"final_{column}") for column in DECIDING]
    return next((one for one in columns if any(row.get(one) is not None for row in rows)), SCORE_OF["test_accuracy"])


def trial_score(metric: str, numbers: Row) -> str:
    """The number that decides between trials. The default metric gives validation data the first place."""
    if metric != "best_accuracy":
        return metric
    names = ("best_val_accuracy", "least_val_loss", "best_accuracy", "least_test_loss")
    return next((name for name in names if name in numbers), metric)


def scores_by_seed(outcomes: Sequence[Outcome], score: str) -> dict[int, float]:
    """The score of every run that has one, by its seed."""
    runs = {outcome.seed: of_run(outcome, ()) for outcome in outcomes if outcome.error is None}
    return {seed: run[score] for seed, run in runs.items() if score in run}


def failures(row: Mapping[str, Any]) -> tuple[int, int]:
    """How many seeds of a row failed, and how many are still to come."""
    failed = sum(why != NOT_RUN for why in row["errors"].values())
    return failed, len(row["errors"]) - failed


def moments(name: str, runs: Sequence[Mapping[str, float]]) -> Row:
    """Mean and sample deviation of a number, or None if not all runs have it. If a run diverged, there is no deviation."""
    values = [run[name] for run in runs if name in run]
    if not values or len(values) < len(runs):
        return {name: None, f"{name}_std": None}
    if not all(map(math.isfinite, values)):
        return {name: sum(values), f"{name}_std": None}  # inf or nan, as the mean would be
    return {name: statistics.fmean(values), f"{name}_std": statistics.stdev(values) if len(values) > 1 else None}


def finite(value: Any) -> Any:
    """A nested value with None for numbers that are not finite. JSON and plots cannot have such numbers."""
    if isinstance(value, Mapping):
        return {key: finite(z) for key, z in value.items()}
    if isinstance(value, list | tuple):
        return [finite(z) for z in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def curves(outcomes: Sequence[Outcome]) -> Row:
    """The measurements of every seed in the rounds that have some, and the floats until then (mean over seeds)."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    if not good:
        return {"round": [], "floats": [], "accuracy": {}}
    first = good[0].history
    at = [t for t, row in enumerate(first) if row.get("test_accuracy") is not None]
    losses = [t for t, row in enumerate(first) if row.get("test_loss") is not None] if not at else []
    at = at or losses or [len(first) - 1]
    sent = [floats_sent(outcome.history) for outcome in good]
    found: Row = {
        "round": [t + 1 for t in at],
        "floats": [statistics.fmean(one[t] for one in sent) for t in at],
        "accuracy": {str(outcome.seed): finite(outcome.accuracies) for outcome in good},
    }
    packed = [bytes_sent(outcome.history) for outcome in good]
    if None not in packed:
        found["bytes"] = [statistics.fmean(one[t] for one in packed if one is not None) for t in at]
    if "clock_seconds" in first[-1]:
        found["hours"] = [statistics.fmean(outcome.history[t]["clock_seconds"] for outcome in good) / 3600 for t in at]
    columns = [key for key, value in first[at[-1]].items() if key not in OTHER and isinstance(value, int | float)]
    for column in ["test_loss"] * bool(losses) + columns:
        found[column] = {str(outcome.seed): finite([outcome.history[t].get(column) for t in at]) for outcome in good}
    return found


def robust_width(points: Sequence[tuple[float, float]], share: float = 0.05) -> tuple[float, bool]:
    """(decades, open) of the widest interval around the best point whose accuracies are within a share of the best.

    points: (value, accuracy).  open: the interval reaches an end of the values, so it may be wider. It consists of
    neighbouring points, so its width is only as exact as the points are close.
    """
    points = sorted(points)
    best = max(range(len(points)), key=lambda i: points[i][1])
    least = (1 - share) * points[best][1]
    low = high = best
    while low > 0 and points[low - 1][1] >= least:
        low -= 1
    while high < len(points) - 1 and points[high + 1][1] >= least:
        high += 1
    return math.log10(points[high][0] / points[low][0]), low == 0 or high == len(points) - 1


# Columns of the table ---

# Columns that runs have only if `metrics` has this name.
MEASURED = {
    "train": ("final_train_set_loss", "final_train_accuracy", "final_objective"),
    "gradient_norm": ("final_gradient_norm", "least_gradient_norm", "mean_gradient_norm"),
    "consistency": ("final_consistency",),
    "drift": ("final_drift", "final_cosine"),
    "tracking": ("final_tracking_error", "final_tracking_bias"),
    "qp": ("final_qp_violated", "final_qp_turned", "final_qp_residual"),
}
ALWAYS = (*ACCURACIES, "rounds_to_best", "final_train_loss", "floats", "up", "dropped", "seconds", "memory_mb")
TIMES = ("final_late", "final_coverage", "final_record_age", "final_oldest_record", "final_staleness")
CONDITIONS = ("bytes", "final_epsilon", "hours", *TIMES)
LOSSES = ("final_test_loss", "least_test_loss")  # in place of accuracies, for regression
VALIDATION = ("best_val_accuracy", "final_val_accuracy", "least_val_loss", "final_val_loss")
COLUMNS = (
    *LOSSES,
    *ALWAYS,
    *VALIDATION,
    "cost",
    "final_client_accuracy",
    *CONDITIONS,
    *(column for columns in MEASURED.values() for column in columns),
)
NAMES = {
    "last10_accuracy": "accuracy, mean of last 10 rounds",
    "accuracy": "test accuracy",
    "train_loss": "mean local training loss",
    "least_test_loss": "best test loss",
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
    "bytes": "bytes up and down",
    "epsilon": "privacy spent (epsilon)",
    "hours": "virtual hours",
    "late": "late clients",
    "coverage": "share of clients that have come",
    "record_age": "mean age of client records (rounds)",
    "oldest_record": "age of the oldest client record (rounds)",
    "staleness": "mean delay of uploads (server steps)",
    "most_stale": "largest delay of an upload (server steps)",
}
COUNTED = ("rounds", "floats", "up", "bytes", "cost", "hours")  # until a target
TARGETS = r"(target|second|third|target_\d+)"
OF_TARGET = (re.compile(rf"({'|'.join(COUNTED)})_to_{TARGETS}"), re.compile(rf"(at)_{TARGETS}_accuracy"))


def label_of(column: str) -> str:
    """A column in words, for tables and plots. `final_...` has the words of its curve."""
    of_curve = column.removeprefix("final_")
    if column in ACCURACIES or of_curve not in NAMES:
        return NAMES.get(column, column.replace("_", " "))
    return "final " * (of_curve != column) + NAMES[of_curve]


def of_target(name: str) -> tuple[str, str] | None:
    """Of a column about a target: (what is counted, the end of the name, see `target_name`). Otherwise None."""
    found = next(filter(None, (pattern.fullmatch(name) for pattern in OF_TARGET)), None)
    return None if found is None else (found[1], found[2])


def is_column(name: str) -> bool:
    return name in COLUMNS or of_target(name) is not None


def check_column(where: str, name: str) -> None:
    """Raises ValueError if no study can have this column."""
    if not is_column(name):
        known = [
            *COLUMNS,
            *(f"{kind}_to_{z}" for kind in COUNTED for z in ("target", "second")),
        ]
        raise ValueError(f"{where} = {name!r} is not allowed{nearest(name, known)}")


def better_is_less(name: str) -> bool:
    """True for losses, costs and distances: for all columns except accuracies and the cosine."""
    return not name.endswith(("accuracy", "cosine"))


def needs(name: str, branch: Branch, target_on: str) -> str | None:
    """What a branch would need to have a column, in words, or None if it has the column."""
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
    if name in VALIDATION and not getattr(config, "validation", 0):
        return "validation data, for example validation = 0.1"
    if name == "final_objective" and not config.weight_decay and "weight_decay" not in branch.grid:
        return "weight_decay > 0 (without it, final_train_set_loss is the objective)"
    if name == "final_client_accuracy" and not lookup(config.algorithm).facts.private:
        return "a method with layers of its own at every client, such as fedbn"
    if kind == "hours" and config.clock is None:
        return "a clock, for example clock = 'phones'"
    if kind == "cost" and branch.cost is None:
        return "a cost in the method's table"
    return None
