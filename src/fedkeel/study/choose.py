"""`choose`: which method should you run? Equal tuning budgets, finalists over seeds, an answer in sentences.

1. Candidates: all methods that the task and the constraints allow (`choosing.candidates`).
2. Tuning: each candidate spends the same number of rounds (`choosing.budget`, `choosing.tuning`).
3. Finalists: an ordinary study of the best candidates, with several seeds at full length.
4. The answer, as text, in choice.json and on the page (`choosing.answer`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.engine.machine import cores
from fedkeel.errors import RoundError
from fedkeel.files import guarded, write_atomically
from fedkeel.runs import from_config
from fedkeel.study.choosing.answer import candidate_row, commands, sentences, tuning_sentence
from fedkeel.study.choosing.budget import divide, read_budget
from fedkeel.study.choosing.candidates import Constraints, cost_of, why_excluded
from fedkeel.study.choosing.tuning import SEED, TuningPlan
from fedkeel.study.compare import Methods, check_jobs, run_study
from fedkeel.study.python_objects import PythonObjects, method_tables, separated
from fedkeel.study.report.write import CHOICE, write_report
from fedkeel.study.results.collect import write
from fedkeel.study.results.numbers import finite
from fedkeel.study.running.plan import BranchResult
from fedkeel.study.running.proposals import import_optuna
from fedkeel.study.running.scheduler import run_plan
from fedkeel.study.running.space import planned, space_of
from fedkeel.study.running.tuning import write_journal
from fedkeel.study.study import Study
from fedkeel.study.study_result import StudyResult

if TYPE_CHECKING:
    from torch import nn

    from fedkeel.data.federation import Federation

YARDSTICK = "fedavg"  # always among three or more finalists
VALIDATION = 0.2
SHARE = 0.8  # of a time budget; the rest is for starting processes, evaluation and the report
TIMED = 3  # rounds that are timed


def choose(
    model: nn.Module | Any,
    fed: Federation | str,
    *,
    budget: int | str = 100,
    methods: Methods | None = None,
    constraints: Mapping[str, Any] | None = None,
    rounds: int = 100,
    target: float | None = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    **settings: Any,
) -> StudyResult:
    """Finds out which method to run on these data. `print(fk.choose(...))` shows the answer.

    budget: full runs (100), or a time ("60min"). At most half goes to the finalists, the rest equally to the tuning of all.
    methods: names, fk.algorithm(...) or tables; default: all that the task allows. What you give is not tuned.
    constraints: {"stateless": True, "secure_sums": True, "floats_per_round": 1e6, "gradients_per_step": 1,
    "memory_per_client": 0}; floats are numbers of 4 bytes, counted for one client.
    rounds: of a full run.  target: an accuracy; the answer has the costs to reach it.
    seeds: of each finalist; default: enough for a significant difference, if the budget allows it.
    out, jobs, fresh, settings: as in `fk.compare`. Validation data decide (validation=0.2 by default).

    >>> study = choose("mlp", "digits", budget=60, methods=["fedavg", "scaffold", "fadamgt"], rounds=40)
    """
    check_jobs(jobs)
    given = {"rounds": rounds, "validation": VALIDATION} | settings
    tables = None if methods is None else method_tables(methods)
    plain, objects = separated(model, fed, given)
    how: dict[str, Any] = {"target": target, "seeds": seeds, "jobs": jobs, "fresh": fresh, "progress": progress}
    limits = Constraints.read(constraints)
    if out is not None:
        return run_choice(plain, objects, tables, budget, limits, Path(out), command="Python", kept=True, **how)
    with tempfile.TemporaryDirectory(prefix="fedkeel-choose-") as place:
        return run_choice(plain, objects, tables, budget, limits, Path(place), command="Python", **how)


def run_choice(
    file: Mapping[str, Any],
    objects: PythonObjects,
    tables: Mapping[str, Mapping[str, Any]] | None,
    given_budget: int | str,
    limits: Constraints,
    out: Path,
    *,
    target: float | None = None,
    seeds: int | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    command: str = "",
    kept: bool = False,
) -> StudyResult:
    """file: the task as a study file has it, without methods.  kept: `out` stays after the call."""
    import_optuna()
    runs, seconds = read_budget(given_budget)
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 2):
        raise ValueError(f"seeds = {seeds!r} is not allowed; it must be a whole number >= 2")
    task = _Task(file, objects)
    candidates, excluded = task.candidates(tables, limits)
    if len(candidates) < 2:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(excluded.items())[:3])
        raise ValueError(f"methods: there must be at least two candidates, not {len(candidates)} ({why or 'none excluded'})")
    seedless = {key: z for key, z in file.items() if key != "seed"}
    tuning = Study.read({**seedless, "methods": candidates, "seeds": [task.config.seed + SEED]})
    spaces = {branch.method: space_of(branch, task.fed, task.layers) for branch in tuning.branches}
    if runs is None:
        runs = _affordable(task, seconds or 0.0, len(candidates), jobs, out, fresh)
    whole = "cosine" in str(getattr(task.config, "lr_schedule", None))
    budget = divide(runs, task.config.rounds, len(candidates), seeds, whole)
    plan = TuningPlan(tuning, out / "tuning", fresh, objects=objects, spending=budget.tuning, spaces=spaces)
    trained = budget.tuning.explore + sum(count for count, _ in budget.tuning.longer)
    total = len(candidates) * trained, len(candidates) * budget.tuning.rounds
    found = run_plan(plan, *total, jobs=jobs, progress=progress)
    write_journal(found, spaces, out / "tuning" / "trials.journal")
    rows = [candidate_row(one, spaces[one.branch.method], task.cost(one), budget) for one in found]
    ranked = sorted((row for row in rows if row["score"] is not None), key=lambda row: -row["score"])
    if not ranked:
        raise RoundError(found[0].branch.method, 0, None, "choose", f"every trial failed: {found[0].trials[0]['error']}")
    finalists = _finalists([row["method"] for row in ranked], budget.finalists)
    chosen = {row["method"]: row["values"] for row in ranked}
    methods = {name: _without_lists(candidates[name]) | chosen[name] for name in finalists}
    every = {} if "evaluate_every" in file else {"evaluate_every": max(1, task.config.rounds // 20)}
    final = {**file, **every, "methods": methods, "seeds": budget.seeds} | ({} if target is None else {"target": target})
    study = Study.read(final)
    results = run_study(study, out, jobs=jobs, fresh=fresh, progress=progress, objects=objects, command=command)
    result = StudyResult.read(out)
    best = result.best_name
    config = result.config_of(best)
    choice = {
        "best": best,
        "answer": sentences(results, best, sorted(rows, key=_rank), budget),
        "commands": commands(_short(config, study, best), best, out if kept else None),
        "candidates": sorted(rows, key=_rank),
        "tuning": tuning_sentence(rows),
        "excluded": excluded,
        "budget": {
            "runs": runs,
            "tuning rounds of each candidate": budget.tuning.rounds,
            "seeds of a finalist": budget.seeds,
        },
    }
    write_atomically(out / CHOICE, json.dumps(finite(choice), indent=1, allow_nan=False).encode())
    results = results | {"choice": choice, "tuning": choice["tuning"]}
    write(results, out)
    write_report(results, out)
    return StudyResult(result.study, result.branches, results, out if kept else None)


def _rank(row: Mapping[str, Any]) -> float:
    return float("inf") if row["score"] is None else -row["score"]


def _finalists(ranked: list[str], count: int) -> list[str]:
    """The best ones. The last of three or more is FedAvg if it is a candidate: everybody knows it."""
    found = ranked[:count]
    if count > 2 and YARDSTICK in ranked and YARDSTICK not in found:
        found[-1] = YARDSTICK
    return found


def _without_lists(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a method without grids: the tuning has chosen their values."""
    return {key: z for key, z in table.items() if not isinstance(z, list)}


def _short(config: Any, study: Study, method: str) -> Any:
    """The config as it was given, without defaults written out, for the command line."""
    branch = next(one for one in study.branches if one.name == method)
    return branch.config.changed(seed=config.seed)


class _Task:
    """The data, the model and the settings that all candidates share."""

    def __init__(self, file: Mapping[str, Any], objects: PythonObjects) -> None:
        from torch import nn

        from fedkeel.engine.objective import seeded

        probe = Study.read({**file, "methods": {YARDSTICK: {}}, "seeds": 1})
        self.config = probe.branches[0].at({}, probe.branches[0].seeds[0], probe.resplit)
        if not self.config.validation:
            raise ValueError(
                "validation = 0 is not allowed; choose decides by validation data, for example validation = 0.2"
            )
        self.fed = objects.fed or from_config.federation(self.config)
        if objects.model is None:
            make, self.fed = from_config.task(self.config, self.fed)
            self.module = seeded(make, self.config.seed)
        else:
            model: Any = objects.model
            self.module = model if isinstance(model, nn.Module) else seeded(model, self.config.seed)

    @property
    def layers(self) -> Any:
        from fedkeel.core.flat import Layers

        return Layers([p.numel() for p in self.module.parameters() if p.requires_grad])

    def candidates(
        self, tables: Mapping[str, Mapping[str, Any]] | None, limits: Constraints
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """(candidates with their tables, the others with the reason)."""
        from fedkeel.core.algorithm import algorithms

        found: dict[str, dict[str, Any]] = {}
        excluded: dict[str, str] = {}
        for label, table in ({name: {} for name in algorithms()} if tables is None else tables).items():
            why = why_excluded(label, table, self.config, self.fed, self.module, limits)
            if why is None:
                found[label] = dict(table)
            else:
                excluded[label] = why
        return found, excluded

    def cost(self, found: BranchResult) -> Any:
        method = found.branch.at(found.chosen, found.branch.seeds[0], False).method
        return cost_of(planned(method, self.config, self.fed, self.layers, self.config.rounds), self.layers)


def _affordable(task: _Task, seconds: float, candidates: int, jobs: int | None, out: Path, fresh: bool) -> int:
    """How many full runs fit into the time. Measured once and kept, so that a second call has the same budget."""
    path = out / "budget.json"
    if path.exists() and not fresh:
        known = json.loads(path.read_text())
        if known.get("seconds") == seconds:
            return int(known["runs"])
    config = task.config.changed(rounds=TIMED, evaluate_every=0, workers=1)
    run = from_config.train(config, progress=False, fed=task.fed, model=task.module)
    pace = sum(row["seconds"] for row in run.history[1:]) / (TIMED - 1)
    runs = int(SHARE * seconds * (jobs or cores()) / max(pace * task.config.rounds, 1e-9))
    guarded(out, lambda: out.mkdir(parents=True, exist_ok=True))
    write_atomically(path, json.dumps({"seconds": seconds, "runs": runs}).encode())
    return runs
