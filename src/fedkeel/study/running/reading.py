"""What the runs of a study say so far, complete or not, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedkeel.engine.state import directory
from fedkeel.runs.config import SETTINGS, RunConfig
from fedkeel.runs.saved_config import difference, differences, saved_config
from fedkeel.study.results.numbers import NOT_RUN
from fedkeel.study.running.plan import Found, Job, outcome_of, steps_of
from fedkeel.study.study import Branch, Study, path_of


def read_study(study: Study, store: Path) -> list[Found]:
    """What the complete runs of a study say, without running anything."""
    found = []
    for group in study.groups():
        steps, answer = steps_of(study, group, store, False, {}, _chosen_before(group, store)), None
        while True:
            try:
                asked = steps.send(answer)
            except StopIteration as end:
                found += end.value
                break
            answer = [
                outcome_of(job, b, seed, _other_choice(job, b))
                for job, b, seed in zip(asked.jobs, asked.branches, asked.seeds, strict=True)
            ]
    return found


def _chosen_before(group: Sequence[Branch], store: Path) -> dict[str, Any] | None:
    """What a search has chosen, from the runs that came after it; None if there are none yet.

    Its trials alone cannot tell: of those that failed, an archive of complete runs has nothing.
    """
    first = group[0]  # the search is made in its case, if there are several
    for branch, seed in [(one, seed) for one in group for seed in one.seeds if first.grid]:
        ran = _at_grid(first, path_of(store, branch, seed))
        if ran is not None and all(ran[key] in values for key, values in first.grid.items()):
            return ran
    return None


def _other_choice(job: Job, branch: Branch) -> str | None:
    """How the run in a directory differs from what was chosen, if the grid was another when it was run."""
    ran = _at_grid(branch, job.out) if branch.grid else None
    if ran is None or ran == {key: _value(job.config, key) for key in branch.grid}:
        return None
    other = differences(job.out, job.config)
    return NOT_RUN if other.keys() <= set(branch.grid) else difference(job.out, job.config)


def _at_grid(branch: Branch, path: Path) -> dict[str, Any] | None:
    """The values that the run in a directory has of the keys of the grid; None if there is no run."""
    if not directory.holds_run(path) or not (path / "config.toml").exists():
        return None
    config = saved_config(path)
    return {key: _value(config, key) for key in branch.grid}


def _value(config: RunConfig, key: str) -> Any:
    return getattr(config, key) if key in SETTINGS else config.hyperparameters.get(key)
