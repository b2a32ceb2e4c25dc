"""Real conditions on real data: writes results/conditions/NAME.md.

    python benchmarks/conditions.py NAME --data-dir DATA      NAME: privacy, bytes, attacks, absence, hours or steps

Finished runs are kept in results/conditions/NAME.jsonl and not run again. A run takes one to five seconds on one core.
`steps` comes first: it searches the step sizes of every method without conditions, on a seed that no table uses. The other
tables take the best of each from steps.jsonl; padamfed's follow from its theory.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import fedkeel as fk

FOLDER = Path("results/conditions")
SEEDS = (0, 1, 2)
EIGHT = ("fedavg", "fedprox", "fedavgm", "fedadam", "fedams", "scaffold", "fedlada", "fadamgt")


@dataclass(frozen=True)
class Case:
    """One run: where it stands in the table, and how it is trained."""

    row: str  # the method
    column: str
    seed: int
    data: str
    settings: dict[str, Any]
    split: dict[str, Any]
    model: str = "network"
    target: float | None = None
    options: dict[str, float] = field(default_factory=dict)  # of the method, beside the step sizes of its model

    @property
    def key(self) -> str:
        return f"{self.row} | {self.column} | {self.seed}"


def linear() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


MODELS: dict[str, Callable[[], torch.nn.Module]] = {"linear": linear, "network": network}
SKEWED = {"clients": 100, "concentration": 0.3}


# The experiments ------------------------------------------------------------------------------------------------------


def privacy() -> Iterator[Case]:
    """1,000 clients, 100 of them a round (without replacement, replace-one neighbours), delta 1e-5, 30 rounds, clip 0.5."""
    budgets = {"none": None, "16": 16, "4": 4, "1": 1}
    split = {"clients": 1000, "concentration": 1.0}
    settings = {"rounds": 30, "cohort": 100, "local_steps": 5, "evaluate_every": 0}
    for data, (name, epsilon), method, seed in itertools.product(("mnist", "fashion-mnist"), budgets.items(), EIGHT, SEEDS):
        noise = {} if epsilon is None else {"privacy": f"gaussian:clip=0.5,epsilon={epsilon}"}
        yield Case(method, f"{data}, epsilon {name}", seed, data, settings | noise, split, "linear")


def bytes_to_target() -> Iterator[Case]:
    """100 clients with skewed labels, 10 a round, at most 80 rounds."""
    links = ("none", "quantize:8", "quantize:4", "topk:0.05", "topk:0.05+quantize:8", "sign")
    settings = {"rounds": 80, "cohort": 10, "local_steps": 10, "evaluate_every": 2}
    for link, method, seed in itertools.product(links, EIGHT, SEEDS):
        uplink = {} if link == "none" else {"uplink": link}
        yield Case(method, link, seed, "mnist", settings | uplink, SKEWED, target=0.9)


def attacks() -> Iterator[Case]:
    """100 clients, 20 a round, a fifth of all clients attacks, 25 rounds. The rules expect a quarter of bad clients."""
    rules = ("mean", "median", "trimmed:0.25", "multi-krum:0.25", "geometric-median", "centred-clipping:2.0")
    bad = ("none", "sign-flip:fraction=0.2,scale=5", "noise:fraction=0.2,deviation=0.1", "alie:0.2", "label-flip:0.2")
    settings = {"rounds": 25, "cohort": 20, "local_steps": 5, "evaluate_every": 0}
    split = {"clients": 100, "concentration": 1.0}
    for method, rule, attack, seed in itertools.product(("fedavg", "fedavgm", "fedadam", "scaffold"), rules, bad, SEEDS):
        chosen = {"aggregation": rule} | ({} if attack == "none" else {"attack": attack})
        column = attack.partition(":")[0]
        yield Case(f"{method}, {rule.partition(':')[0]}", column, seed, "fashion-mnist", settings | chosen, split)


def absence() -> Iterator[Case]:
    """100 clients, nearly one class each, at most 10 a round, 80 rounds. Mean of the evaluations of rounds 60 to 80."""
    kinds = {
        "everybody is there": "uniform",
        "Markov": "markov:on=0.02,off=0.08",
        "by label": "by_label:least=0.01,most=0.4",
    }
    methods = ("fedavg", "scaffold", "mifa", "gradma-s", "gradma", "padamfed", "fedlada", "fadamgt", "mime-lamb", "fed-lamb")
    settings = {"rounds": 80, "cohort": 10, "local_steps": 5, "evaluate_every": 5}
    for (name, kind), method, seed in itertools.product(kinds.items(), methods, SEEDS):
        split = {"clients": 100, "concentration": 0.1}
        yield Case(method, name, seed, "mnist", settings | {"participation": kind}, split)


def hours() -> Iterator[Case]:
    """100 phones with skewed labels. Rounds of 10; rounds that take the first 10 of 13; a buffer of 10 with 10 or 30 phones
    at work at the same time."""
    kinds: dict[str, dict[str, Any]] = {
        "rounds": {},
        "first 10 of 13": {"overselect": 1.3},
        "buffer 10, 10 at work": {"buffer": 10, "concurrency": 10},
        "buffer 10, 30 at work": {"buffer": 10, "concurrency": 30},
    }
    settings = {"rounds": 150, "cohort": 10, "local_steps": 10, "evaluate_every": 2, "clock": "phones"}
    for (name, more), method, seed in itertools.product(kinds.items(), EIGHT, SEEDS):
        yield Case(method, name, seed, "mnist", settings | more, SKEWED, target=0.9)


def steps() -> Iterator[Case]:
    """One seed that no table uses, no conditions, accuracy after 30 rounds."""
    local = {"lr": (0.01, 0.03, 0.1, 0.3)}
    adaptive = {"lr": (0.001, 0.003, 0.01, 0.03, 0.1)}
    layers = {"lr": (0.01, 0.03, 0.1)}
    server = {"lr": (0.03, 0.1, 0.3), "server_lr": (0.003, 0.01, 0.03, 0.1, 0.3)}
    grids: dict[str, dict[str, tuple[float, ...]]] = dict.fromkeys(
        ("fedavg", "fedprox", "fedavgm", "scaffold", "mifa"), local
    )
    grids |= dict.fromkeys(("gradma", "gradma-s"), local) | dict.fromkeys(("fedadam", "fedams"), server)
    grids |= dict.fromkeys(("fedlada", "fadamgt"), adaptive) | dict.fromkeys(("fed-lamb", "mime-lamb"), layers)
    settings = {"rounds": 30, "cohort": 10, "local_steps": 5, "evaluate_every": 0}
    for model, (method, grid) in itertools.product(MODELS, grids.items()):
        for values in itertools.product(*grid.values()):
            options = dict(zip(grid, values, strict=True))
            column = ", ".join(f"{name} {value:g}" for name, value in options.items())
            yield Case(f"{model}: {method}", column, 9, "mnist", settings, SKEWED, model, options=options)


EXPERIMENTS = {
    "privacy": privacy,
    "bytes": bytes_to_target,
    "attacks": attacks,
    "absence": absence,
    "hours": hours,
    "steps": steps,
}
TITLES = {
    "privacy": "Accuracy against epsilon",
    "bytes": "Megabytes that a client sends until 90 % on MNIST",
    "attacks": "Rules against attackers, Fashion-MNIST",
    "absence": "Clients that come and go, MNIST",
    "hours": "Virtual hours until 90 % on MNIST, on a fleet of phones",
    "steps": "Step sizes",
}


# Runs -----------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def federation(data: str, split: str, seed: int, folder: str) -> fk.Federation:
    return fk.load(data, folder).split("dirichlet_per_class", seed=seed, **json.loads(split))


@functools.cache
def best_steps(model: str) -> dict[str, dict[str, float]]:
    """The step sizes with the best accuracy, by method."""
    done = _kept("steps")
    found: dict[str, Case] = {}
    for case in (case for case in steps() if case.model == model and "accuracy" in done.get(case.key, {})):
        name = case.row.split(": ")[-1]
        if name not in found or done[case.key]["accuracy"] > done[found[name].key]["accuracy"]:
            found[name] = case
    return {name: case.options for name, case in found.items()}


def _kept(name: str) -> dict[str, dict[str, Any]]:
    """The finished runs of an experiment."""
    path = FOLDER / f"{name}.jsonl"
    return {row["key"]: row for row in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


def finished(case: Case, folder: str) -> dict[str, Any]:
    """Trains one case. A run stops when its target is reached."""
    fed = federation(case.data, json.dumps(case.split), case.seed, folder)
    name = case.row.split(", ")[0].split(": ")[-1]
    method = fk.algorithm(name, **case.options or best_steps(case.model).get(name, {}))

    def reached(row: dict[str, Any], state: Any) -> None:
        if case.target is not None and (row["test_accuracy"] or 0) >= case.target:
            state.stop()

    began = time.process_time()
    common = {"batch_size": 20, "engine": "sequential", "progress": False, "seed": case.seed, "callbacks": [reached]}
    try:
        history = fk.train(MODELS[case.model], fed, method, **common, **case.settings).history
    except fk.RoundError as error:
        return {"key": case.key, "error": str(error)[:200]}
    scores = [row["test_accuracy"] for row in history if row["test_accuracy"] is not None]
    found = {"key": case.key, "accuracy": scores, "rounds": len(history), "cpu": round(time.process_time() - began, 2)}
    for way in ("up", "down"):
        found[way] = round(sum(row[f"{way}_bytes"] for row in history))
    for name in ("epsilon", "coverage", "clock_seconds", "staleness"):
        if history[-1].get(name) is not None:
            found[name] = round(history[-1][name], 4)
    return found


# Tables ---------------------------------------------------------------------------------------------------------------


def number(name: str, case: Case, runs: Sequence[dict[str, Any]]) -> str:
    """A cell: the mean over seeds, and their standard deviation."""
    if any("error" in run for run in runs):
        return "diverged"
    if case.target is not None:
        missed = sum(run["accuracy"][-1] < case.target for run in runs)
        values = [run["clock_seconds"] / 3600 if name == "hours" else run["up"] / 1e6 for run in runs]
        text = f"{statistics.fmean(values):.3g}"
        return f">{text} ({len(runs) - missed} of {len(runs)})" if missed else text
    last = [statistics.fmean(run["accuracy"][-5:] if name == "absence" else run["accuracy"][-1:]) for run in runs]
    spread = f" ± {100 * statistics.stdev(last):.1f}" if len(last) > 1 else ""
    return f"{100 * statistics.fmean(last):.1f}{spread}"


def table(name: str, cases: Sequence[Case], done: dict[str, dict[str, Any]]) -> str:
    rows, columns = (list(dict.fromkeys(getattr(case, z) for case in cases)) for z in ("row", "column"))
    if name == "steps":
        lines = ["| run | accuracy |", "|---|---|"]
        return "\n".join(
            lines + [f"| {case.row}, {case.column} | {number(name, case, [done[case.key]])} |" for case in cases]
        )
    lines = [f"| method | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = []
        for column in columns:
            mine = [case for case in cases if (case.row, case.column) == (row, column) and case.key in done]
            cells.append(number(name, mine[0], [done[case.key] for case in mine]) if mine else "")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(name: str, cases: Sequence[Case], done: dict[str, dict[str, Any]]) -> Path:
    path, findings = FOLDER / f"{name}.md", FOLDER / f"{name}.findings.md"
    unit = "" if cases[0].target is not None else " Test accuracy in percent, mean ± standard deviation over seeds."
    seeds = len({case.seed for case in cases if case.key in done})
    step_sizes = " Step sizes come from [a search](steps.md) without conditions; they were not searched again." * (
        name != "steps"
    )
    path.write_text(
        f"# {TITLES[name]}\n\nMade by `python benchmarks/conditions.py {name} --data-dir DATA`. "
        f"{' '.join((EXPERIMENTS[name].__doc__ or '').split())} Seeds: {seeds}; each has its own split."
        f"{unit}{step_sizes}\n\n"
        f"{table(name, cases, done)}\n" + (f"\n{findings.read_text()}" if findings.exists() else "")
    )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(EXPERIMENTS))
    parser.add_argument("--data-dir", default="~/data", help="folder of the data sets")
    parser.add_argument("--table", action="store_true", help="only write the table of the finished runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    cases, kept = list(EXPERIMENTS[options.name]()), FOLDER / f"{options.name}.jsonl"
    done = _kept(options.name)
    # One seed after the other, so that a table is complete early.
    for case in sorted(cases, key=lambda case: case.seed):
        if case.key in done or options.table:
            continue
        done[case.key] = finished(case, options.data_dir)
        print(done[case.key], flush=True)
        with kept.open("a") as file:
            file.write(json.dumps(done[case.key]) + "\n")
    print(write(options.name, cases, done).read_text())


if __name__ == "__main__":
    main()
