"""What the runs of a study say so far, complete or not, without running anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fedkeel.engine.state import directory
from fedkeel.runs.config import SETTINGS, RunConfig
from fedkeel.runs.saved_config import difference, differences, saved_config
from fedkeel.study.results.numbers import NOT_RUN
from fedkeel.study.running.plan import BranchResult, StudyPlan, StudyRun
from fedkeel.study.study import Branch, Study, path_of


def read_study(study: Study, store: Path) -> list[BranchResult]:
    """The results of a study from the runs that are complete."""
    plan, results = StudyPlan(study, store, only_reads=True), []
    for group in study.groups():
        waves = plan.branch_runs(group, _chosen_before(group, store))
        try:
            wave = next(waves)
            while True:
                wave = waves.send([run.outcome(_other_choice(run)) for run in wave])
        except StopIteration as end:
            results += end.value
    return results


def _chosen_before(group: Sequence[Branch], store: Path) -> dict[str, Any] | None:
    """What a search chose, read from the runs that came after it. None if there are no such runs yet.

    The trials alone do not always tell: an archive of complete runs lacks the trials that failed.
    """
    first = group[0]  # the search was made in its case
    for branch, seed in [(one, seed) for one in group for seed in one.seeds if first.grid]:
        values = _values_on_disk(first.grid, path_of(store, branch, seed))
        if values is not None and all(values[key] in grid for key, grid in first.grid.items()):
            return values
    return None


def _other_choice(run: StudyRun) -> str | None:
    """Why the run on disk is not this one, if the grid had other values when it was run. None if it is this one."""
    keys = run.searched or run.branch.grid
    values = _values_on_disk(keys, run.out) if keys else None
    if values is None or values == {key: _value(run.config, key) for key in keys}:
        return None
    only_the_grid = differences(run.out, run.config).keys() <= set(keys)
    return NOT_RUN if only_the_grid else difference(run.out, run.config)


def _values_on_disk(keys: Collection[str], path: Path) -> dict[str, Any] | None:
    """The searched values that the run in a directory has. None if there is no run."""
    if not directory.holds_run(path) or not (path / "config.toml").exists():
        return None
    config = saved_config(path)
    return {key: _value(config, key) for key in keys}


def _value(config: RunConfig, key: str) -> Any:
    return getattr(config, key) if key in SETTINGS else config.hyperparameters.get(key)
