"""The results of a study as one dictionary, and the files that keep it: results.json, table.csv, origin.json."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomli_w

from fedkeel.engine.settings import alike
from fedkeel.files import as_toml, guarded, write_atomically
from fedkeel.runs.config import SETTINGS, RunConfig, with_split_defaults
from fedkeel.study.python_objects import NAMES_ONLY, PythonObjects
from fedkeel.study.results.numbers import (
    NOT_RUN,
    Row,
    better_is_less,
    curves,
    deciding_score,
    failures,
    finite,
    robust_width,
    scores_by_seed,
    summarise,
    target_name,
)
from fedkeel.study.results.significance import distinct, groups, note, paired_differences
from fedkeel.study.running.plan import BranchResult, fair_spending
from fedkeel.study.running.study_data import StudyData
from fedkeel.study.study import Study
from fedkeel.wording import COUNT_OR_SHARE

if TYPE_CHECKING:
    from pandas import DataFrame

# Settings of one run. All others are part of the task.
OWN = ("algorithm", "hyperparameters", "seed")
MOST = 200  # clients and classes in the figure of a split
SPLIT_SETTINGS = [
    name for name, about in SETTINGS.items() if about.metadata["group"] == "Data" and name not in ("data_dir", "augment")
]
ORIGIN = "origin.json"  # command and place of the runs of a study, and how their data were split


def collect(study: Study, found: Sequence[BranchResult], command: str = "") -> dict[str, Any]:
    """Everything that a report shows."""
    order = {branch.name: place for place, branch in enumerate(study.branches)}
    found = sorted(
        found, key=lambda one: order[one.branch.name]
    )  # If one search serves all cases, `found` has the cases of a method side by side.
    rows = [_row(study, one) for one in found]
    settings = [_settings(study, one) for one in found]
    shared = _common({key: z for key, z in settings[0].items() if key not in OWN}, settings)
    cases = {case: _case(case, shared, settings, found) for case in study.cases}
    return {
        "title": study.title,
        "about": study.about,
        "task": shared,
        "cases": cases,
        "axes": study.axes,
        "methods": {
            one.branch.name: _of_method(mine, {*OWN, *shared, *cases[one.branch.case], *study.axes})
            for one, mine in zip(found, settings, strict=True)
        },
        "seeds": sorted({seed for one in found for seed in one.branch.seeds}),
        "target": next((one.branch.targets[0] for one in found if one.branch.targets), None),
        "rows": rows,
        "curves": {one.branch.name: curves(one.outcomes) for one in found},
        "search": _searches(study, found),
        "tuning": _tuning(study, found),
        **_differences(rows, found),
        "robustness": _robustness(study, rows),
        "paper": [paper.model_dump() for paper in study.paper],
        "versions": _versions(found),
        "command": command,
    }


def _differences(rows: Sequence[Row], found: Sequence[BranchResult]) -> Row:
    """Paired differences over seeds between the methods of a case, at the same values of the axes."""
    score = deciding_score(rows)
    scores = {one.branch.name: scores_by_seed(one.outcomes, score) for one in found}
    places = {one.branch.name: (one.branch.case, one.branch.method, one.branch.axes) for one in found}
    several = len({method for _, method, _ in places.values()}) > 1
    pairs = [pair for pair in combinations(scores, 2) if _are_compared(places[pair[0]], places[pair[1]], several)]
    first = [one.history[0].get("train_loss", math.nan) for each in found for one in each.outcomes if one.history]
    losses = [z for z in first if finite(z) is not None]
    first_loss = None if score.endswith("accuracy") else max(losses, default=0.0)
    differences = paired_differences(scores, pairs, first_loss)
    for row in rows:
        row |= _standing(row, rows, places, differences, score)
    return {"compared_by": score, "differences": differences, "significance": note(differences)}


def _standing(row: Row, rows: Sequence[Row], places: Mapping[str, Any], differences: Sequence[Row], score: str) -> Row:
    """Where a row stands among those that it is compared with: the best, not distinguishable from it, or worse.

    `group`: rows that share a letter cannot be told apart. `from_best`: its paired difference from the best one.
    """
    pairs = {(one["method"], one["other"]) for one in differences}
    here = [z for z in rows if z is row or (z["name"], row["name"]) in pairs or (row["name"], z["name"]) in pairs]
    scored = [z for z in here if isinstance(z.get(score), float) and math.isfinite(z[score])]
    if row not in scored or len(scored) < 2:
        return {"standing": "", "group": "", "from_best": None}
    sign = 1 if better_is_less(score) else -1
    ranked = [z["name"] for z in sorted(scored, key=lambda z: sign * z[score])]
    group, best = groups(ranked, differences)[row["name"]], ranked[0]
    if row["name"] == best:
        return {"standing": "best", "group": group, "from_best": None}
    about = next((one for one in differences if {one["method"], one["other"]} == {best, row["name"]}), None)
    if about is None:  # an axis that only one of the two has
        return {"standing": "", "group": "", "from_best": None}
    turn = 1 if about["method"] == row["name"] else -1
    ends = sorted((turn * about["low"], turn * about["high"]))
    numbers = {"difference": turn * about["difference"], "low": ends[0], "high": ends[1]}
    numbers |= {key: about[key] for key in ("p", "seeds", "seeds_needed")}
    return {"standing": "worse" if distinct(about) else "alike", "group": group, "from_best": numbers}


def _are_compared(one: tuple[str, str, Row], other: tuple[str, str, Row], several: bool) -> bool:
    """Two methods at the same values of the axes that both have. A study of one method compares its values."""
    (case, method, at), (other_case, other_method, other_at) = one, other
    if case != other_case:
        return False
    if not several:
        return True
    return method != other_method and all(at[key] == other_at[key] for key in at.keys() & other_at.keys())


def _settings(study: Study, found: BranchResult) -> dict[str, Any]:
    """The settings of a branch that have an effect on it, as far as they are known."""
    config = found.branch.at(found.chosen, found.branch.seeds[0], study.resplit)
    hidden = {key for key in found.branch.grid if key not in found.chosen}  # The search has not ended.
    hidden |= {"length"} if _has_no_texts(config.data) else set()
    hidden |= {"ray_address"} if config.engine != "ray" else set()
    settings = config.as_dict() | ({"split_seed": "each run's seed"} if study.resplit else {})
    own = {key: z for key, z in config.hyperparameters.items() if key not in hidden}
    return {key: z for key, z in settings.items() if key not in hidden} | {"hyperparameters": own}


def _has_no_texts(data: str) -> bool:
    """Is the setting `length`, of texts, without meaning for these data?"""
    if data == "digits":
        return True
    from fedkeel.data.catalogue import IMAGES, TABLES

    return data in IMAGES or data in TABLES


def _of_method(settings: Mapping[str, Any], others: set[str]) -> dict[str, Any]:
    """The hyper-parameters of a branch, and the settings that no other branch has."""
    return dict(settings["hyperparameters"]) | {key: z for key, z in settings.items() if key not in others}


def _versions(found: Sequence[BranchResult]) -> dict[str, str]:
    """The versions and machines of the runs."""
    made = [outcome.made_with for one in found for outcome in one.outcomes if outcome.made_with]
    if not made:
        return {"versions": "not kept"}
    return {key: ", ".join(sorted({str(one.get(key)) for one in made})) for key in made[0]}


def _row(study: Study, found: BranchResult) -> Row:
    branch = found.branch
    config = branch.at(found.chosen, branch.seeds[0], study.resplit)  # with the chosen values: a grid may be over rounds
    row: Row = {"name": branch.name, "case": branch.case, "algorithm": branch.config.algorithm, "axes": branch.axes}
    row |= {"targets": list(branch.targets), "chosen": found.chosen, "paper": _printed(study, found)}
    row["edges"] = [edge.partition(" ")[0] for trial in found.trials if trial["chosen"] for edge in trial["edges"]]
    row["evaluate_every"] = config.evaluate_every
    cost = branch.cost_of(found.chosen)
    return row | summarise(branch.method, found.outcomes, branch.targets, config.rounds, study.target_on, cost)


def _searches(study: Study, found: Sequence[BranchResult]) -> list[dict[str, Any]]:
    """Every search once, with the branch in whose case it was made."""
    made_in = {group[0].name for group in study.groups()}
    return [_search(study, one) for one in found if one.trials and one.branch.name in made_in]


def _tuning(study: Study, found: Sequence[BranchResult]) -> str:
    """Where the hyper-parameters come from, in a sentence or two."""
    if study.search.way == "fair":
        spending = [fair_spending(study, one.branch) for one in found]
        rounds = " to ".join(map(str, sorted({min(one.rounds for one in spending), max(one.rounds for one in spending)})))
        return (
            f"Every method was tuned with {rounds} rounds ({study.search.trials} trials; one that fails ends early), on "
            "validation data. What the study sets to one value was not tuned."
        )
    searched = list(dict.fromkeys(one.branch.method for one in found if one.branch.grid))
    if searched:
        return f"Searched by {study.search.metric.replace('_', ' ')}: {', '.join(searched)}. Grids may differ in size."
    given = any(one.branch.config.hyperparameters for one in found)
    what = "as given, otherwise defaults" if given else "defaults"
    return f"Hyper-parameters: {what}, not tuned (--tune searches them with equal budgets)."


def _search(study: Study, found: BranchResult) -> dict[str, Any]:
    """The trials of a branch, and a note if no trial has the number that decides."""
    plan, config = study.search.model_dump(exclude_none=True), found.branch.config
    same = {"rounds": config.rounds, "every": config.evaluate_every}  # as the runs that count
    plan = {key: z for key, z in plan.items() if same.get(key) != z}
    about = {"name": found.branch.name, **plan, "trials": found.trials, "note": ""}
    if all(trial["score"] is None and trial["error"] != NOT_RUN for trial in found.trials):
        chosen = ", ".join(f"{key} {value}" for key, value in found.chosen.items())
        about["note"] = f"no trial has {study.search.metric}, so the middle of every list was taken: {chosen}"
    return about


def _printed(study: Study, found: BranchResult) -> dict[str, Any]:
    """The paper's numbers for a branch, by metric."""
    place = [found.branch.case, *found.branch.axes.values()]
    printed = {}
    for paper in study.paper:
        at = [i for i, column in enumerate(paper.at) if column in place or paper.at == [""]]
        if at and found.branch.method in paper.values:
            printed[paper.metric] = paper.values[found.branch.method][at[0]]
    return printed


def _case(
    case: str, shared: Mapping[str, Any], settings: Sequence[Mapping[str, Any]], found: Sequence[BranchResult]
) -> dict[str, Any]:
    """The settings that all runs of a case share, but not all runs of the study."""
    mine = [one for one, other in zip(settings, found, strict=True) if other.branch.case == case]
    return _common({key: z for key, z in mine[0].items() if key not in (*OWN, *shared)}, mine)


def _common(values: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values that are the same in all settings."""
    return {key: z for key, z in values.items() if all(alike(key, one.get(key), z) for one in settings)}


def _robustness(study: Study, rows: Sequence[Row]) -> list[Row]:
    """For every method and numeric axis: decades over which its accuracy stays within 5 % of its best."""
    found = []
    for axis, values in study.axes.items():
        if len(values) < 3 or not all(isinstance(z, int | float) and z > 0 for z in values):
            continue
        if (
            axis in COUNT_OR_SHARE and len({type(z) for z in values}) > 1
        ):  # 1 client and a share of 0.5 have no common scale.
            continue
        lines: dict[tuple[str, ...], tuple[Row, list[tuple[float, float]]]] = {}  # by text, because 1 and 1.0 differ
        for row in rows:
            if axis in row["axes"]:
                others = {key: z for key, z in row["axes"].items() if key != axis}
                if row["final_accuracy"] is None and NOT_RUN in row["errors"].values():
                    continue
                failed = sum(why != NOT_RUN for why in row["errors"].values())  # They count as 0.
                score = (row["final_accuracy"] or 0.0) * row["seeds"] / max(row["seeds"] + failed, 1)
                name = (row["case"], row["method"], repr(others))
                lines.setdefault(name, (others, []))[1].append((row["axes"][axis], score))
        for (case, method, _), (others, points) in lines.items():
            if max(z for _, z in points) == 0.0:
                continue
            found.append(
                {"case": case, "method": method, "at": others, "axis": axis}
                | dict(zip(("decades", "open"), robust_width(points), strict=True))
                | {"best": max(z for _, z in points)}
            )
    return found


# How the labels of a case are spread over its clients ---


class Split(NamedTuple):
    key: str  # the settings that decide the split
    of: str  # the settings that differ within the case: the case then has several splits, and this is one of them
    config: RunConfig


def split_of(study: Study, case: str) -> Split:
    """The split of the first branch of a case, for its first seed."""
    configs = []
    for branch in [branch for branch in study.branches if branch.case == case]:
        config = with_split_defaults(branch.config)
        configs.append(config.changed(split_seed=branch.seeds[0]) if study.resplit else config)
    values = {name: getattr(configs[0], name) for name in SPLIT_SETTINGS}
    several = [name for name in SPLIT_SETTINGS if any(getattr(config, name) != values[name] for config in configs)]
    several += ["split_seed"] * (study.resplit and "split_seed" not in several)
    return Split(json.dumps(values), ", ".join(f"{name} = {values[name]}" for name in several), configs[0])


def shown_splits(study: Study, counts: Mapping[str, Any]) -> dict[str, Any]:
    """The splits that the report shows, by case. counts: samples of every class at every client, by key of the split."""
    splits = {case: split_of(study, case) for case in study.cases}
    shown = {case: {"of": one.of, "counts": counts[one.key]} for case, one in splits.items() if one.key in counts}
    for case, one in shown.items():  # Some splits, such as that by writers, decide the number of clients themselves.
        one["more"] = len(one["counts"]) == MOST != splits[case].config.clients
    return shown


def count_splits(study: Study, out: Path, objects: PythonObjects = NAMES_ONLY) -> dict[str, Any]:
    """Counts the splits of a study and keeps the counts in its directory. Then the same as `shown_splits`."""
    origin = read_origin(out)
    data, known, counts = StudyData(objects), origin["partitions"], {}
    for split in [split_of(study, case) for case in study.cases]:
        if split.key in known:
            counts[split.key] = known[split.key]
        elif split.key not in counts:
            # If the runs come from another machine, the data may be missing here. Then there is no figure.
            with contextlib.suppress(ValueError, OSError, ImportError):
                fed = data.of(split.config)
                if not fed.y.is_floating_point() and fed.y.dim() == 1 and fed.y.max() < MOST:
                    counts[split.key] = fed.label_counts(int(fed.y.max()) + 1)[:MOST].tolist()
    write_atomically(out / ORIGIN, json.dumps(origin | {"partitions": counts}).encode())
    return shown_splits(study, counts)


# Files ----------------------------------------------------------------------------------------------------------------


def write(results: Mapping[str, Any], out: Path) -> None:
    """Writes results.json (everything) and table.csv (the rows)."""
    write_atomically(out / "results.json", json.dumps(finite(results), indent=1, allow_nan=False).encode())
    write_atomically(out / "table.csv", as_csv(results).encode())


def begin(study: Study, out: Path, store: Path, command: str, fresh: bool) -> None:
    """Writes study.toml, which `fedkeel compare` can run again, and origin.json. `report` then works before the end."""
    guarded(out, lambda: out.mkdir(parents=True, exist_ok=True))
    write_atomically(out / "study.toml", tomli_w.dumps(as_toml(study.file)).encode())
    origin = {"command": command, "store": os.path.relpath(store, out), "partitions": {}}
    if (out / ORIGIN).exists() and not fresh:
        origin["partitions"] = read_origin(out).get("partitions", {})
    write_atomically(out / ORIGIN, json.dumps(origin).encode())


def read_origin(out: Path) -> dict[str, Any]:
    """The command of a study, the directory of its runs, and the counts of its splits. {} if there is no such file."""
    path = out / ORIGIN
    try:
        return dict(json.loads(path.read_text())) if path.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"out: {path} cannot be read: {error}") from None


def as_csv(results: Mapping[str, Any]) -> str:
    """The rows as a table, with one column for every number, axis and chosen value."""
    return str(as_frame(results).to_csv(index=False))


def as_frame(results: Mapping[str, Any]) -> DataFrame:
    """The rows as a pandas frame, with one column for every number, axis and chosen value."""
    hidden = ("errors", "axes", "edges", "chosen", "paper", "targets", "evaluate_every", "target_on")
    lines = []
    for row in results["rows"]:
        line = {key: z for key, z in row.items() if key not in hidden}
        line |= row["axes"] | {f"chosen_{key}": z for key, z in row["chosen"].items()}
        line |= {f"paper_{key}": z for key, z in row["paper"].items()}
        line |= {target_name(number): target for number, target in enumerate(row["targets"])}
        failed, not_run = failures(row)
        about = line.pop("from_best") or {}
        if line["standing"]:
            line |= {f"{key}_from_best" if key == "difference" else f"from_best_{key}": z for key, z in about.items()}
        line |= {"at_edge": ", ".join(row["edges"])} if row["chosen"] else {}
        lines.append(line | {"failed": failed, "not_run": not_run})
    from pandas import DataFrame

    fullest = max(lines, key=len)  # It gives the order of columns, whatever the first line lacks.
    columns = list(dict.fromkeys(key for line in [fullest, *lines] for key in line))
    return DataFrame(lines, columns=columns, dtype=object)
