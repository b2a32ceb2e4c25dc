"""The tuning of all candidates of `choose`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedkeel.study.running.plan import BranchResult, StudyPlan, Waves
from fedkeel.study.running.search import Values
from fedkeel.study.running.space import Space
from fedkeel.study.running.tuning import Spending, Trial, TrialRun, tune
from fedkeel.wording import file_name, value_text

SEED = 1000  # added to the seed of the study: no run that counts has it


@dataclass(frozen=True)
class TuningPlan(StudyPlan):
    """The trials of all candidates. Every branch of the study is a candidate."""

    spending: Spending | None = None
    spaces: Mapping[str, Space] = field(default_factory=dict)

    def branch_runs(self, group: Any, chosen_before: Values | None = None) -> Waves:
        (branch,), spending = group, self.spending
        assert spending is not None

        def make_run(trial: Trial, rounds: int) -> TrialRun:
            how = {"rounds": rounds, "evaluate_every": spending.unit}
            config = branch.at(trial.values, trial.seed, self.study.resplit, **how)
            values = ",".join(f"{key}={value_text(z, key)}" for key, z in trial.values.items()) or "defaults"
            out = self.store / file_name(branch.method) / f"{file_name(values)}-seed{trial.seed}"
            return TrialRun(branch, config, out, trial.values, out.name, keep=True, objects=self.objects)

        values, trials = yield from tune(branch, self.spaces[branch.method], spending, branch.seeds[0], make_run)
        return [BranchResult(branch, values, trials=trials)]

    def clear(self) -> None:
        shutil.rmtree(self.store, ignore_errors=True)
