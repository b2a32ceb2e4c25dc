"""All methods on one task, each at its best learning rate of five: writes results/digits-all.md.

python benchmarks/digits_all.py            # about half an hour on two cores; resumable, in results/digits-all.jsonl
"""

from __future__ import annotations

import json
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import fedkeel as fk
from fedkeel.core.algorithm import lookup
from fedkeel.engine.machine import cores
from fedkeel.models import make_model

ROUNDS, SEEDS = 100, (0, 1, 2)
TASK = (
    "Digits, 50 clients, Dirichlet 0.1 per class, 10 per round, K = 10, batch 20, 100 rounds. The step size is the best of "
    "five on seed 0, by the mean test accuracy of the last ten rounds; the table shows seeds 0, 1 and 2 with it. Methods "
    "that are only defined when all clients take part (marked *) have all 50 in every round."
)
# Asynchronous: 25 clients at work, a server step after 5 uploads.
ASYNC = {"clock": "phones", "buffer": 5, "concurrency": 25, "staleness": "constant", "cohort": 5, "rounds": 200}
# Single runs with seed 0 that examine methods below fedavg: (name, step, what is changed).
LOOKED_INTO: list[tuple[str, float, dict[str, Any]]] = [
    ("fadamet", 0.01, {"rounds": 300}),
    ("fadamet", 0.01, {"cohort": 50}),
    ("fadamet", 0.01, {"concentration": 100.0}),
    ("fed-lamb", 0.03, {"lr_decay": 0.97}),
    ("fed-lamb", 0.01, {"cohort": 50}),
    ("mime-lamb", 0.03, {"lr_decay": 0.97}),
    ("mime-lamb", 0.01, {"cohort": 50}),
    ("fedadt", 0.03, {"lr_decay": 0.97}),
    ("local-adam", 0.01, {"concentration": 100.0}),
    ("fedsgd", 1.0, {"rounds": 300}),
    ("moonm", 0.1, {"lr_decay": 0.97}),
    *(("vrl-sgd", step, {"cohort": 10}) for step in (0.01, 0.03, 0.1, 0.3, 1.0)),
    *(("scaffnew", 0.03, {"cohort": 10, "seed": seed}) for seed in SEEDS),
    ("domo", 0.03, {"seed": 1}),
    ("domo", 0.03, {"seed": 2}),
    ("fedcams", 0.03, {"cohort": 50}),
    ("fedcams", 0.1, {"server_lr": 0.1}),
    ("fedawe", 0.1, {"cohort": 25}),
    ("fedawe", 0.1, {"lr_decay": 0.97}),
    ("fedspeed", 0.3, {"cohort": 50}),
    ("fedspeed", 0.3, {"dual": "all"}),
    ("diloco", 0.001, {"rounds": 300}),
    ("diloco", 0.001, {"concentration": 100.0}),
    *(("fedavg", step, ASYNC) for step in (0.01, 0.03, 0.1, 0.3)),
    *(("fadas", step, ASYNC | {"tau_c": 1_000_000}) for step in (0.003, 0.01, 0.03, 0.1)),
    *(("fadas", step, ASYNC) for step in (0.01, 0.03, 0.1, 0.3)),
]
CACHE, TABLE, FINDINGS = (
    Path("results/digits-all.jsonl"),
    Path("results/digits-all.md"),
    Path("results/digits-all.findings.md"),
)
SGD, ADAPTIVE, LAMB = (0.01, 0.03, 0.1, 0.3, 1.0), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), (0.001, 0.003, 0.01, 0.03, 0.1)
# Methods whose step size is not called lr, or whose lr comes from theory.
SWEPT = {"fedsps": "eta_b", "delta-sgd": "eta0", "fadas": "server_lr"} | dict.fromkeys(
    ("padamfed", "padamfed-vr", "scaffold-normalized"), "gamma"
)


def grid(name: str) -> tuple[str, tuple[float, ...]]:
    """What is swept, and over which values."""
    local = lookup(name).facts.local
    values = ADAPTIVE if local.startswith(("AMSGrad", "Adam", "Muon")) else SGD
    if local.startswith("LAMB") or name == "fadas":
        values = LAMB
    return SWEPT.get(name, "lr"), (0.03, 0.1, 0.3, 1.0, 3.0) if SWEPT.get(name) == "gamma" else values


def needs_all(name: str) -> bool:
    return any(field.name == "allow_partial" for field in fields(lookup(name)))  # type: ignore[arg-type]


def one(name: str, value: float, seed: int, **changed: Any) -> dict[str, Any]:
    """One run. changed: settings of the run, and hyper-parameters of the method."""
    torch.set_num_threads(1)
    row = {"name": name, "value": value, "seed": seed}
    split = {"clients": 50, "concentration": changed.pop("concentration", 0.1), "seed": 0}
    fed = fk.load("digits").split("dirichlet_per_class", **split)
    own = {field.name: changed.pop(field.name) for field in fields(lookup(name)) if field.name in changed}  # type: ignore[arg-type]
    own |= {"allow_partial": True} if needs_all(name) and "cohort" in changed else {}
    settings = {"rounds": ROUNDS, "cohort": 50 if needs_all(name) else 10, "local_steps": 10, "batch_size": 20, "seed": seed}
    try:
        run = fk.train(
            lambda: make_model("mlp", (1, 8, 8), 10), fed, fk.algorithm(name, **{grid(name)[0]: value}, **own),
            engine="vectorized", progress=False, **settings | changed,
        )  # fmt: skip
    except fk.RoundError as error:  # diverged to infinity
        return row | {"error": str(error)}
    scores = [r["test_accuracy"] for r in run.history]
    reached = next((t + 1 for t, score in enumerate(scores) if score >= 0.9), None)
    return row | {"final": scores[-1], "best": max(scores), "last10": statistics.mean(scores[-10:]), "to90": reached}


def look_into() -> str:
    """The table of single runs that the findings refer to."""
    rows = [json.loads(line) for line in CACHE.read_text().splitlines()]
    lines = ["| method | step | changed | last 10 rounds | best |", "|---|---|---|---|---|"]
    for name, value, changed in LOOKED_INTO:
        row = next((row for row in rows if (row["name"], row["value"], row.get("changed")) == (name, value, changed)), None)
        if row is None:
            row = one(name, value, **{"seed": 0} | changed) | {"changed": changed}
            with CACHE.open("a") as file:
                file.write(json.dumps(row) + "\n")
        changes = ", ".join(f"{key} {z if isinstance(z, str) else f'{z:g}'}" for key, z in changed.items())
        scores = "diverged | |" if "error" in row else f"{row['last10']:.3f} | {row['best']:.3f} |"
        lines.append(f"| {name} | {value:g} | {changes} | {scores}")
    return "\n".join(lines)


def run_all(jobs: list[tuple[str, float, int]], what: str) -> dict[tuple[str, float, int], dict[str, Any]]:
    """The results of the runs. Those in the cache are not run again."""
    CACHE.parent.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in CACHE.read_text().splitlines()] if CACHE.exists() else []
    done = {(row["name"], row["value"], row["seed"]): row for row in rows if "changed" not in row}
    missing = [job for job in jobs if job not in done]
    with ProcessPoolExecutor(cores()) as pool, open(CACHE, "a") as file:
        futures = [pool.submit(one, *job) for job in missing]
        for future in track(as_completed(futures), description=what, total=len(futures)):
            row = future.result()
            done[row["name"], row["value"], row["seed"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
    return done


def shown(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def table(done: dict[tuple[str, float, int], dict[str, Any]], best: dict[str, float]) -> str:
    lines = [
        "| method | step | last 10 rounds | best | rounds to 0.9 |",
        "|---|---|---|---|---|",
    ]
    rows = []
    for name, value in best.items():
        runs = [done[name, value, seed] for seed in SEEDS]
        good = [run for run in runs if "error" not in run]
        reached = [run["to90"] for run in good if run["to90"]]
        rounds = (
            f"{statistics.mean(reached):.0f}" + ("" if len(reached) == 3 else f" ({len(reached)}/3)") if reached else ">100"
        )
        step = f"{grid(name)[0]} = {value:g}"
        if len(good) < 3:
            rows.append((0.0, f"| {name} | {step} | diverged in {3 - len(good)} of 3 | | |"))
        else:
            last = [run["last10"] for run in good]
            marked = f"{name} *" if needs_all(name) else name
            text = f"| {marked} | {step} | {shown(last)} | {shown([run['best'] for run in good])} | {rounds} |"
            rows.append((statistics.mean(last), text))
    return "\n".join(lines + [text for _, text in sorted(rows, key=lambda row: -row[0])])


def main() -> None:
    names = [name for name in fk.algorithms() if not name.startswith("fedit")]
    search = run_all([(name, value, 0) for name in names for value in grid(name)[1]], "search, seed 0")
    best = {name: max(grid(name)[1], key=lambda value: search[name, value, 0].get("last10", -1.0)) for name in names}
    done = run_all([(name, best[name], seed) for name in names for seed in SEEDS], "three seeds")
    findings = FINDINGS.read_text() if FINDINGS.exists() else ""
    heading = f"# All methods on digits\n\nMade by `python benchmarks/digits_all.py`. {TASK}\n"
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(f"{heading}\n{table(done, best)}\n\n{findings}\n{look_into()}\n")
    print(TABLE.read_text())


if __name__ == "__main__":
    main()
