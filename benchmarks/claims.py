"""The main claims of the five papers beside our numbers: results/claims.md and the short table in README.md.

    python benchmarks/claims.py            # writes both from results/claims.toml and the runs in results/NAME/runs.tar.xz
    python benchmarks/claims.py --check    # writes nothing; fails if a file differs from what the runs say

results/claims.toml has the papers' words and, for each, which method must be ahead of which others, and in which runs. The
verdict follows from the paired differences over seeds: a comparison holds if the 95 % interval of the mean difference
(Student's t) lies above 0. A claim is confirmed if all of its comparisons hold, and in part if some do.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import ttest_1samp

from fedkeel.files import read_toml
from fedkeel.study.results.numbers import NOT_RUN, of_run
from fedkeel.study.running.plan import BranchResult
from fedkeel.study.running.reading import read_study
from fedkeel.study.study import Study

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
STUDIES = ROOT / "benchmarks" / "studies"
PAPERS = ("gradma", "lada", "lamb", "ppf", "pt")  # how the names of their studies begin
LEAST = 3  # common seeds; fewer have no useful interval
HOME = "https://github.com/fedkeel/fedkeel/blob/main/"  # README links are absolute, for PyPI
BEGIN, END = "<!-- claims: made by benchmarks/claims.py -->", "<!-- end of claims -->"
CONFIRMED, IN_PART, NOT_CONFIRMED, NOT_TESTABLE = "confirmed", "in part", "not confirmed", "not testable here"
VERDICTS = (CONFIRMED, IN_PART, NOT_CONFIRMED, NOT_TESTABLE)


METRICS = {  # names that a table explains by its targets
    "last10_accuracy": "accuracy, mean of the last 10 rounds",
    "rounds_to_second": "rounds to the second target",
    "cost_to_second": "the paper's cost to the second target",
}


class Comparison(NamedTuple):
    text: str  # both means and the difference with its interval, or why there is none
    holds: bool | None  # None: too few common seeds
    seeds: int


@functools.cache
def outcomes(folder: str) -> dict[tuple[str, str], list[BranchResult]]:
    """(case, method) -> the results of a folder's runs, one for each value of its axes."""
    found: dict[tuple[str, str], list[BranchResult]] = {}
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(RESULTS / folder / "runs.tar.xz") as archive:
            archive.extractall(place, filter="data")
        for one in read_study(Study.read(read_toml(RESULTS / folder / "study.toml")), Path(place)):
            found.setdefault((one.branch.case, one.branch.method), []).append(one)
    return found


def scores(folder: str, case: str, method: str, at: dict[str, Any], metric: str) -> tuple[dict[int, float], int]:
    """The score of every seed, and how many seeds failed. Without a value for an axis: the worst score over the axis."""
    try:
        every = outcomes(folder)[case, method]
    except KeyError:
        raise ValueError(f"claims.toml: results/{folder} has no {method} in case {case!r}") from None
    chosen = [one for one in every if all(one.branch.axes.get(key) == value for key, value in at.items())]
    if not chosen:
        raise ValueError(f"claims.toml: results/{folder} has no {method} at {at}")
    values = [by_seed(one, metric) for one in chosen]
    failed = [{o.seed for o in one.outcomes if o.error not in (None, NOT_RUN)} for one in chosen]
    if len(chosen) > 1:  # A run that failed is the worst that a value of the axis can do, so it counts as 0.
        values = [value | dict.fromkeys(seeds, 0.0) for value, seeds in zip(values, failed, strict=True)]
        return {seed: min(value[seed] for value in values) for seed in sorted(set.intersection(*map(set, values)))}, 0
    return values[0], len(failed[0])


def by_seed(one: BranchResult, metric: str) -> dict[int, float]:
    """The score of every run that has one. A run that never reached the target has no rounds or cost to it."""
    targets, cost = one.branch.targets, one.branch.cost_of(one.chosen)
    runs = {o.seed: of_run(o, targets, cost=cost) for o in one.outcomes if o.error is None}
    return {seed: run[metric] for seed, run in runs.items() if metric in run}


def compare(spec: dict[str, Any], other: str) -> Comparison:
    """One method against one other, seed by seed."""
    metric, case = spec["metric"], spec.get("case", "")
    at = spec.get("at", {})
    sides = [(spec["better"], at), (other, spec.get("than_at", at))]
    (mine, failed), (theirs, lost) = [scores(spec["folder"], case, method, place, metric) for method, place in sides]
    names = [method + "".join(f" {key}={value}" for key, value in place.items()) for method, place in sides]
    failures = [f"; {name} failed on {n} seed{'s' * (n > 1)}" for name, n in zip(names, (failed, lost), strict=True) if n]
    common = [seed for seed in mine if seed in theirs]
    if len(common) < LEAST:
        text = f"{names[0]} against {names[1]}: {len(common)} common seeds" + "".join(failures)
        return Comparison(text, None, len(common))
    percent = metric.endswith("accuracy")
    unit = 100 if percent else 1
    differences = [unit * (mine[seed] - theirs[seed]) for seed in common]
    low, high = student_interval(differences)
    means = [number(unit * statistics.fmean(one[seed] for seed in common), percent) for one in (mine, theirs)]
    change = [number(z, percent, signed=True) for z in (statistics.fmean(differences), low, high)]
    text = f"{names[0]} {means[0]}, {names[1]} {means[1]}: {change[0]} ({change[1]} to {change[2]})" + "".join(failures)
    ahead = high < 0 if spec.get("less") else low > 0
    return Comparison(text, ahead and not failed, len(common))


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of a few normal numbers."""
    if len(set(values)) == 1:
        return values[0], values[0]
    found = ttest_1samp(values, 0.0).confidence_interval(0.95)
    return float(found.low), float(found.high)


def number(value: float, percent: bool, signed: bool = False) -> str:
    sign = "+" if signed and value > 0 else "-" if value < 0 else ""
    return sign + (f"{abs(value):.1f}" if percent else f"{abs(value):.3g}")


def verdict(found: Sequence[Comparison]) -> str:
    held = [one.holds for one in found if one.holds is not None]
    if not held:
        return NOT_TESTABLE
    return CONFIRMED if all(held) else IN_PART if any(held) else NOT_CONFIRMED


def judged(claim: dict[str, Any]) -> tuple[str, list[str]]:
    """The verdict on a claim, and the lines of its numbers."""
    lines, every = [], []
    for spec in claim.get("compare", []):
        found = [compare(spec, other) for other in spec["than"]]
        every += found
        where = ", ".join(
            z for z in (spec.get("case", ""), METRICS.get(spec["metric"], spec["metric"]).replace("_", " ")) if z
        )
        seeds = sorted({one.seeds for one in found})
        lines.append(f"[{spec['folder']}]({spec['folder']}/README.md), {where}, {' to '.join(map(str, seeds))} seeds:")
        lines += [f"{'✓' if one.holds else '?' if one.holds is None else '✗'} {one.text}" for one in found]
    return verdict(every), lines


def page(claims: Sequence[dict[str, Any]]) -> str:
    parts = [
        "# The papers' main claims beside our numbers",
        "Made by `python benchmarks/claims.py` from [claims.toml](claims.toml) and the runs of each folder.",
        "Two runs with the same seed share the split, the initial weights, the sampling and the batches. So methods are "
        "compared seed by seed. In brackets is the 95 % interval of the mean difference (Student's t). ✓: the interval lies "
        "on the side that the paper claims. ✗: it does not. ?: fewer than three common seeds. A claim is *confirmed* if all "
        "of its comparisons have ✓, *in part* if some have, *not confirmed* if none has. Accuracies are test accuracies in "
        "percent. Our tasks are smaller than the papers', as each row says: a verdict is about this regime only.",
        short(claims, ""),
    ]
    for paper in dict.fromkeys(claim["paper"] for claim in claims):
        parts.append(f"## {paper}")
        rows = ["| the paper says | our regime | our numbers | verdict |", "|---|---|---|---|"]
        for claim in [one for one in claims if one["paper"] == paper]:
            what, lines = judged(claim)
            lines += [claim["note"]] if "note" in claim else []
            says = f"\u201c{claim['says']}\u201d ({claim['where']})"
            rows.append(f"| {says} | {claim['regime']} | {'<br>'.join(lines)} | **{what}** |")
        parts.append("\n".join(rows))
    return "\n\n".join([*parts, still_to_run()]) + "\n"


def still_to_run() -> str:
    """The studies of benchmarks/studies that are not complete, and how to go on with them."""
    lines = []
    for path in sorted(path for paper in PAPERS for path in STUDIES.glob(f"{paper}-*.toml")):
        wanted = sum(len(branch.seeds) for branch in Study.read(read_toml(path)).branches)
        kept = outcomes(path.stem) if (RESULTS / path.stem / "runs.tar.xz").exists() else {}
        done = sum(o.error is None for found in kept.values() for one in found for o in one.outcomes)
        if done < wanted:
            title = read_toml(path)["title"]
            lines.append(
                f"| {title} | {done} of {wanted} | `python benchmarks/paper_results.py {path.stem} --data-dir DIR` |"
            )
    how = "Each command goes on from the runs that are kept, also on another machine. A search comes before its runs."
    return "\n".join(
        ["## Still to be run", "", how, "", "| study | runs that are complete | command |", "|---|---|---|", *lines]
    )


def short(claims: Sequence[dict[str, Any]], link: str) -> str:
    """One line per paper: how many of its main claims have which verdict."""
    rows = ["| paper | " + " | ".join(VERDICTS) + " |", "|---" * (1 + len(VERDICTS)) + "|"]
    for paper in dict.fromkeys(claim["paper"] for claim in claims):
        what = [judged(claim)[0] for claim in claims if claim["paper"] == paper]
        rows.append(f"| {paper} | " + " | ".join(str(what.count(one) or "") for one in VERDICTS) + " |")
    return "\n".join(rows) + link


def files() -> dict[Path, str]:
    """Every file that this program writes, with its text."""
    claims = read_toml(RESULTS / "claims.toml")["claims"]
    readme = (ROOT / "README.md").read_text()
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    where = f"[results/claims.md]({HOME}results/claims.md)"
    link = f"\n\nEvery claim in the paper's words, with our numbers and intervals: {where}."
    block = f"{BEGIN}\n{short(claims, link)}\n{END}"
    return {RESULTS / "claims.md": page(claims), ROOT / "README.md": before + block + after}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    given = parser.parse_args()
    stale = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)}: {'differs from the runs' if given.check else 'written'}")
        if not given.check:
            path.write_text(text)
    sys.exit(bool(stale) and given.check)


if __name__ == "__main__":
    main()
