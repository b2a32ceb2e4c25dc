"""Methods side by side: the same split, initial weights, sampling and batches for all, several seeds, one table."""

from __future__ import annotations

import csv
import io
import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedkeel import config as runs
from fedkeel import directory
from fedkeel.config import RunConfig
from fedkeel.engine.checkpoint import StorageError, guarded, write_atomically
from fedkeel.engine.sequential import describe
from fedkeel.study.bar import StudyBar
from fedkeel.study.page import page

Row = dict[str, Any]
# What belongs to one run and not to the task that all of them share.
OWN = ("algorithm", "hyperparameters", "seed")


@dataclass
class Planned:
    """One run of the comparison."""

    config: RunConfig
    out: Path
    complete: bool

    @property
    def name(self) -> str:
        return f"{self.config.algorithm} seed {self.config.seed}"


@dataclass
class Outcome:
    """What became of it: a history, or an error."""

    method: str
    seed: int
    history: list[Row]
    error: str | None = None

    @property
    def accuracies(self) -> list[float]:
        return [row["test_accuracy"] for row in self.history if row["test_accuracy"] is not None]


def compare(
    config: RunConfig,
    algorithms: Sequence[str] | Mapping[str, Mapping[str, Any]],
    seeds: int = 3,
    target: float | None = None,
    out: str | Path = "runs/compare",
    progress: bool = True,
    *,
    fresh: bool = False,
    command: str = "",
) -> list[Row]:
    """Runs every method with the seeds config.seed, config.seed + 1, ... and returns one row per method.

    algorithms: names, or names with their hyper-parameters.  target: test accuracy to be reached, for the costs until then.
    Every run has a directory of its own in `out`; complete ones are not run again, partial ones are continued (fresh:
    replaced). A run that fails is in `errors` of its row and stops no other. `out` gets results.json, table.csv and
    compare.html; command: what to show there as their origin.

    >>> compare(RunConfig(rounds=50), ["fedavg", "scaffold"], seeds=3, target=0.9)
    """
    methods = dict(algorithms) if isinstance(algorithms, Mapping) else {name: {} for name in algorithms}
    _check(methods, len(algorithms), seeds, target)
    out = Path(out)
    planned = plan(config, methods, seeds, out, fresh)
    fed = None if all(one.complete for one in planned) else runs.federation(planned[0].config)
    if fed is not None and fed.test is None:
        raise ValueError(f"data: {config.data} has no test samples, so methods cannot be compared by their accuracy")
    with StudyBar(len(planned), config.rounds, sum(one.complete for one in planned), progress) as bar:
        outcomes = [_read(one) if one.complete else _run(one, fed, fresh, bar) for one in planned]
    by_method = {name: [outcome for outcome in outcomes if outcome.method == name] for name in methods}
    rows = [summarise(name, found, target, config.rounds) for name, found in by_method.items()]
    results = _results(planned, by_method, rows, target, command)
    write(results, out)
    return rows


def _check(methods: Mapping[str, Any], given: int, seeds: int, target: float | None) -> None:
    if not methods:
        raise ValueError("algorithms: there are none; for example fedavg,scaffold,fedlada")
    if len(methods) != given:
        raise ValueError("algorithms: a name is there twice")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise ValueError(f"seeds = {seeds!r} is not allowed; it must be a whole number >= 1")
    if target is not None and (isinstance(target, bool) or not isinstance(target, int | float) or not 0 < target <= 1):
        raise ValueError(f"target = {target!r} is not allowed; it must be an accuracy > 0 and <= 1")


def plan(config: RunConfig, methods: Mapping[str, Any], seeds: int, out: Path, fresh: bool) -> list[Planned]:
    """All runs, seed by seed so that an interrupted comparison has something of every method; checked before any starts."""
    planned = []
    for seed in range(config.seed, config.seed + seeds):
        for name, hyperparameters in methods.items():
            one = runs.resolve(config.changed(algorithm=name, hyperparameters=dict(hyperparameters), seed=seed))
            path = out / f"{name}-seed{seed}"
            mine = directory.holds_run(path) and not fresh
            if mine and (different := directory.difference(path, one)):
                raise ValueError(f"{different}; choose another --out, or --fresh to replace all runs")
            planned.append(Planned(one, path, mine and directory.summary(path, one.rounds) is not None))
    return planned


def _run(one: Planned, fed: Any, fresh: bool, bar: StudyBar) -> Outcome:
    bar.begin(one.name)
    outcome = Outcome(one.config.algorithm, one.config.seed, [])
    try:
        outcome.history = runs.run(one.config, one.out, resume=True, progress=bar, fresh=fresh, fed=fed).history
    except StorageError:  # the next run would have nowhere to go, either
        raise
    except Exception as error:
        outcome.error = str(error) if isinstance(error, ValueError | RuntimeError) else describe(error)
    if outcome.error:
        bar.end(f"{one.name}: failed: {outcome.error}")
    else:
        seconds = sum(row["seconds"] for row in outcome.history)
        bar.end(f"{one.name}: accuracy {outcome.accuracies[-1]:.4f}, {seconds:.1f} s")
    return outcome


def _read(one: Planned) -> Outcome:
    return Outcome(one.config.algorithm, one.config.seed, directory.history(one.out))


# Numbers --------------------------------------------------------------------------------------------------------------


def summarise(method: str, outcomes: Sequence[Outcome], target: float | None, rounds: int) -> Row:
    """The row of a method: means and standard deviations over its seeds; to the target, only if all seeds reached it."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    reached = [hit for outcome in good if (hit := _until(outcome.history, target)) is not None]
    everyone = bool(reached) and len(reached) == len(good)
    row: Row = {"method": method, "seeds": len(good), "rounds": rounds, "reached": len(reached)}
    row |= _moments("final_accuracy", [outcome.accuracies[-1] for outcome in good])
    row |= _moments("best_accuracy", [max(outcome.accuracies) for outcome in good])
    row |= _moments("rounds_to_target", [hit[0] for hit in reached] if everyone else [])
    row |= _moments("floats_to_target", [hit[1] for hit in reached] if everyone else [])
    row |= _moments("floats", [_floats(outcome.history)[-1] for outcome in good])
    row |= _moments("seconds", [sum(z["seconds"] for z in outcome.history) for outcome in good])
    row["errors"] = {outcome.seed: outcome.error for outcome in outcomes if outcome.error is not None}
    return row


def _moments(name: str, values: Sequence[float]) -> Row:
    mean = statistics.fmean(values) if values else None
    return {name: mean, f"{name}_std": statistics.stdev(values) if len(values) > 1 else None}


def _floats(history: Sequence[Row]) -> list[float]:
    """Floats up and down of a client that takes part in every round, until the end of each round."""
    total, sums = 0.0, []
    for row in history:
        total += row["up"] + row["down"] + row.get("warmup_up", 0) + row.get("warmup_down", 0)
        sums.append(total)
    return sums


def _until(history: Sequence[Row], target: float | None) -> tuple[int, float] | None:
    """(rounds, floats) until the accuracy first was at the target, or None."""
    for row, floats in zip(history, _floats(history), strict=True):
        if target is not None and row["test_accuracy"] is not None and row["test_accuracy"] >= target:
            return row["round"] + 1, floats
    return None


def cells(row: Row, target: float | None) -> dict[str, str]:
    """A row as people read it; a target that not all seeds reached is `>rounds`, with the share that did."""
    from fedkeel.show import amount

    def spread(name: str, form: str) -> str:
        if row[name] is None:
            return "-"
        deviation = row[f"{name}_std"]
        return f"{row[name]:{form}}" + (f" ± {deviation:{form}}" if deviation is not None else "")

    shown = {"method": row["method"], "final accuracy": spread("final_accuracy", ".3f")}
    shown["best accuracy"] = spread("best_accuracy", ".3f")
    if target is not None:
        some = f" ({row['reached']}/{row['seeds']})" if row["reached"] else ""
        missed = row["rounds_to_target"] is None and row["seeds"] > 0
        shown[f"rounds to {target:g}"] = f">{row['rounds']}{some}" if missed else spread("rounds_to_target", ".1f")
        floats = row["floats"] if missed else row["floats_to_target"]
        shown[f"floats to {target:g}"] = "-" if floats is None else ">" * missed + amount(floats)
    shown["seconds"] = "-" if row["seconds"] is None else f"{row['seconds']:.1f}"
    if row["errors"]:
        shown["method"] += f"\n({len(row['errors'])} failed)"
    return shown


# Files ----------------------------------------------------------------------------------------------------------------


def _results(
    planned: Sequence[Planned], by_method: Mapping[str, Sequence[Outcome]], rows: list[Row], target: Any, command: str
) -> dict[str, Any]:
    first = planned[0].config.model_dump(exclude_none=True)
    return {
        "task": {key: value for key, value in first.items() if key not in OWN},
        "methods": {one.config.algorithm: one.config.hyperparameters for one in planned},
        "seeds": sorted({one.config.seed for one in planned}),
        "target": target,
        "rows": rows,
        "curves": {name: _curves(found) for name, found in by_method.items()},
        "versions": {"python": platform.python_version()} | {z: version(z) for z in ("fedkeel", "torch", "numpy")},
        "command": command,
    }


def _curves(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Accuracy of every seed at the rounds where it was measured, and the floats until then (their mean over seeds)."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    if not good:
        return {"round": [], "floats": [], "accuracy": {}}
    at = [t for t, row in enumerate(good[0].history) if row["test_accuracy"] is not None]
    floats = [_floats(outcome.history) for outcome in good]
    return {
        "round": [t + 1 for t in at],
        "floats": [statistics.fmean(one[t] for one in floats) for t in at],
        "accuracy": {outcome.seed: outcome.accuracies for outcome in good},
    }


def write(results: Mapping[str, Any], out: Path) -> None:
    """results.json (everything), table.csv (the rows) and compare.html (to look at)."""
    guarded(out, lambda: out.mkdir(parents=True, exist_ok=True))
    write_atomically(out / "results.json", json.dumps(results, indent=1).encode())
    text = io.StringIO()
    columns = [key for key in results["rows"][0] if key != "errors"]
    table = csv.DictWriter(text, [*columns, "failed"], extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows({**row, "failed": len(row["errors"])} for row in results["rows"])
    write_atomically(out / "table.csv", text.getvalue().encode())
    write_atomically(out / "compare.html", page(results).encode())
