"""Methods side by side: the same split, initial weights, sampling and batches for all, several seeds, one table.

`compare`, `sweep` and `reproduce` are for Python. They and the commands of the same names make a study and give it to
`run_study`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.study.changes import change_search, choose_cases, refuse_swept, set_values, tell_changes
from fedkeel.study.file import choose_methods, override
from fedkeel.study.python_objects import NAMES_ONLY, PythonObjects, method_tables, separated
from fedkeel.study.recipes import read as recipes
from fedkeel.study.report.write import write_report
from fedkeel.study.results.collect import begin, collect, count_splits, write
from fedkeel.study.running.scheduler import run_branches
from fedkeel.study.study import Study
from fedkeel.study.study_result import StudyResult

if TYPE_CHECKING:
    from torch import nn

    from fedkeel.core.algorithm import Algorithm
    from fedkeel.data.federation import Federation

Methods = Sequence["str | Algorithm"] | Mapping[str, Mapping[str, Any]]
TRACKERS = ("tensorboard", "mlflow", "wandb")


def compare(
    model: nn.Module | Any,
    fed: Federation | str,
    methods: Methods,
    *,
    seeds: int | list[int] = 3,
    target: float | list[float] | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    tune: bool = False,
    **settings: Any,
) -> StudyResult:
    """Trains every method with every seed, on the same split, initial weights, sampling and batches.

    model: a module, a function that makes one, or a name. A function gives every seed its own initial weights.
    fed: a Federation, or the name of a data set; then settings may have split, clients and so on.
    methods: names and fk.algorithm(...), or {label: {"algorithm": name, "lr": 0.1}}. A list of values is a grid to search.
    seeds: a number (seed, seed + 1, ...) or a list of seeds.  target: an accuracy; the table has the costs to reach it.
    out: a directory for all runs and the page. The same call again goes on where it was stopped, and a call with more
    rounds, seeds or methods only trains what is missing.  fresh: replace what the directory holds.
    jobs: runs at a time, each in a process of one thread (default: one per core).
    tune: first search the hyper-parameters of every method that you have not set, with the same number of rounds for each
    and on validation data. search={"trials": 16, "rounds": 50} changes how much each may spend.
    settings: those of `fk.train`, and the other keys of a study file (docs/study.md), such as resplit and search;
    also ray, slurm, tensorboard, mlflow and wandb, as on the command line.

    >>> study = compare("mlp", "digits", ["fedavg", "scaffold"], rounds=50, seeds=5, target=0.9)
    """
    return _study({}, model, fed, methods, _tuned(settings, tune), seeds, target, out, jobs, fresh, progress)


def sweep(
    model: nn.Module | Any,
    fed: Federation | str,
    methods: Methods,
    over: Mapping[str, Any],
    *,
    seeds: int | list[int] = 3,
    target: float | list[float] | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    tune: bool = False,
    **settings: Any,
) -> StudyResult:
    """As `compare`, for all combinations of the values of some settings or hyper-parameters.

    over: {"lr": [0.01, 0.1, 1]}, or a range {"lr": {"from": 1e-4, "to": 1, "per_decade": 3}}.
    A method that does not have the hyper-parameter is run once, for comparison.

    >>> study = sweep("mlp", "digits", ["fedavg"], over={"lr": [0.01, 0.1, 1]})
    """
    if not over:
        raise ValueError('over: there is no axis; for example over={"lr": [0.01, 0.1]}')
    axes = {name: values if isinstance(values, Mapping) else list(values) for name, values in over.items()}
    return _study({"sweep": axes}, model, fed, methods, _tuned(settings, tune), seeds, target, out, jobs, fresh, progress)


def reproduce(
    name: str,
    *,
    cases: Sequence[str] | str = (),
    scale: str = "paper",
    methods: Sequence[str] = (),
    over: Mapping[str, Any] | None = None,
    changes: Sequence[str] = (),
    seeds: int | None = None,
    target: float | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    tune: bool = False,
    **settings: Any,
) -> StudyResult:
    """Runs a table or figure of one of the papers; `fedkeel reproduce --list` lists them.

    cases: only the columns whose names contain one of these words.  scale: "paper", or "small" for a laptop.
    methods: only these.  changes: hyper-parameters of single methods, ["fedavg.lr=0.1"].  settings replace the paper's.

    >>> study = reproduce("gradma/tab1", cases=["mnist"], scale="small")
    """
    file = choose_cases(recipes.read(name, scale).file, cases if isinstance(cases, str) else ",".join(cases))
    file |= {"sweep": file.get("sweep", {}) | dict(over)} if over else {}
    options, more = _options(settings)
    file = with_options(file, more, algorithms=",".join(methods), seeds=seeds, target=target, changes=changes, tune=tune)
    others = [
        *changes,
        *(["search way=fair"] if tune else []),
        *(f"{axis}={values}" for axis, values in (over or {}).items()),
    ]
    file = tell_changes(file, more | {"seeds": seeds, "target": target}, others)
    return _run(Study.read(file), NAMES_ONLY, out, jobs=jobs, fresh=fresh, progress=progress, **options)


def _study(
    file: dict[str, Any],
    model: Any,
    fed: Any,
    methods: Any,
    settings: Mapping[str, Any],
    seeds: int | list[int],
    target: float | list[float] | None,
    out: str | Path | None,
    jobs: int | None,
    fresh: bool,
    progress: bool,
) -> StudyResult:
    options, more = _options(settings)
    tables = method_tables(methods)
    if not tables:
        raise ValueError('methods: there are none; for example ["fedavg", "scaffold"]')
    plain, objects = separated(model, fed, more)
    study = Study.read(file | plain | {"methods": tables, "seeds": seeds} | ({} if target is None else {"target": target}))
    return _run(study, objects, out, jobs=jobs, fresh=fresh, progress=progress, **options)


def _tuned(settings: Mapping[str, Any], tune: bool) -> dict[str, Any]:
    return dict(settings) | ({"search": dict(settings.get("search", {})) | {"way": "fair"}} if tune else {})


def _options(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(how the study is run, settings of its runs)."""
    trackers = {name: str(settings[name]) for name in TRACKERS if settings.get(name) is not None}
    if trackers:
        from fedkeel.runs.trackers import check

        check(trackers)
    rest = {key: z for key, z in settings.items() if key not in (*TRACKERS, "ray", "slurm")}
    return {"trackers": trackers, "ray": settings.get("ray"), "slurm": settings.get("slurm")}, rest


def _run(study: Study, objects: PythonObjects, out: str | Path | None, **options: Any) -> StudyResult:
    """Runs a study in a directory, or in a temporary one that is removed at the end."""
    check_jobs(options["jobs"])
    if options["jobs"] is None and _gpu_is_in_use():
        options["jobs"] = 1  # A process that was forked could not use the GPU.
    if out is not None:
        run_study(study, Path(out), objects=objects, command="Python", **options)
        return _checked(StudyResult.read(out))
    with tempfile.TemporaryDirectory(prefix="fedkeel-study-") as place:
        results = run_study(study, Path(place), objects=objects, **options)
        found = StudyResult.read(place)
    return _checked(StudyResult(found.study, found.branches, results))


def check_jobs(jobs: int | None) -> None:
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise ValueError(f"jobs = {jobs!r} is not allowed; it must be a whole number >= 1")


def _gpu_is_in_use() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _checked(study: StudyResult) -> StudyResult:
    """Raises if no run succeeded. A study with some failed runs shows them in `errors`."""
    if study.errors and not any(outcome.history for one in study.branches for outcome in one.outcomes):
        name, why = next(iter(study.errors.items()))
        raise RuntimeError(f"study: all {len(study.errors)} runs failed; {name}: {why}")
    return study


def run_study(
    study: Study,
    out: Path,
    *,
    store: Path | None = None,
    command: str = "",
    fresh: bool = False,
    objects: PythonObjects = NAMES_ONLY,
    **options: Any,
) -> dict[str, Any]:
    """Runs a study, writes results and report to `out`, and returns the results.

    store: the directory of all runs, if it is another one.  objects: model and data that have no names.
    options: jobs, ray, slurm, progress and trackers of `run_branches`.
    """
    store = store or out
    branches = run_branches(
        study, store, fresh=fresh, objects=objects, begin=lambda: begin(study, out, store, command, fresh), **options
    )
    results = collect(study, branches, command) | {"partitions": count_splits(study, out, objects)}
    write(results, out)
    write_report(results, out)
    return results


def with_options(
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    algorithms: str = "",
    seeds: int | None = None,
    target: float | None = None,
    changes: Sequence[str] = (),
    search: Sequence[str] = (),
    tune: bool = False,
) -> dict[str, Any]:
    """The content of a study file, changed by options. changes: those of --set.  search: those of --search.

    tune: search all methods with equal budgets.
    """
    changed = choose_methods(override(file, settings), algorithms)
    if file.get("sweep") or changes or search or tune:
        refuse_swept(file, settings)
        changed = change_search(set_values(changed, changes), [*search, *(["way=fair"] if tune else [])])
    for key, value in (("seeds", seeds), ("target", target)):
        if value is not None:
            changed[key] = value
            for case in changed["cases"]:
                case.pop(key, None)
    return changed
