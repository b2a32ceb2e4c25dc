"""Methods side by side: the same split, initial weights, sampling and batches for all, several seeds, one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkeel.runs.config import RunConfig
from fedkeel.study.file import check_targets
from fedkeel.study.report.write import write_report
from fedkeel.study.results.collect import begin, collect, count_splits, write
from fedkeel.study.results.numbers import Row
from fedkeel.study.running.scheduler import run_branches
from fedkeel.study.study import Study


def compare(
    config: RunConfig,
    algorithms: Sequence[str] | Mapping[str, Mapping[str, Any]],
    seeds: int = 3,
    target: float | None = None,
    out: str | Path = "runs/compare",
    progress: bool = True,
    *,
    fresh: bool = False,
    jobs: int | None = None,
    command: str = "",
) -> list[Row]:
    """Runs every method with the seeds config.seed, config.seed + 1, ... and returns one row per method.

    algorithms: names, or names with their hyper-parameters.  target: a test accuracy; rows have the costs to reach it.
    Every run has a directory in `out`. Complete runs are not run again, and partial ones continue (fresh: all are replaced).
    A run that fails is in `errors` of its row and does not stop the others. `out` gets results.json, table.csv and
    report.html.  command: what the report shows as its origin.

    >>> compare(RunConfig(rounds=50), ["fedavg", "scaffold"], seeds=3, target=0.9)
    """
    methods = dict(algorithms) if isinstance(algorithms, Mapping) else {name: {} for name in algorithms}
    if len(methods) != len(algorithms):
        raise ValueError("algorithms: a name is there twice")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise ValueError(f"seeds = {seeds!r} is not allowed; it must be a whole number >= 1")
    check_targets(target)
    file = {key: z for key, z in config.given.items() if key not in ("algorithm", "hyperparameters")}
    study = Study.read(file | {"methods": {name: dict(z) for name, z in methods.items()}, "seeds": seeds, "target": target})
    results = run_study(study, Path(out), fresh=fresh, jobs=jobs, progress=progress, command=command)
    return list(results["rows"])


def run_study(
    study: Study, out: Path, *, store: Path | None = None, command: str = "", fresh: bool = False, **options: Any
) -> dict[str, Any]:
    """Runs a study, and writes results and report to `out`.

    store: the directory of all runs, if it is another one.  options: jobs, ray, progress and trackers of `run_branches`.
    """
    store = store or out
    branches = run_branches(study, store, fresh=fresh, begin=lambda: begin(study, out, store, command, fresh), **options)
    results = collect(study, branches, command) | {"partitions": count_splits(study, out)}
    write(results, out)
    write_report(results, out)
    return results
