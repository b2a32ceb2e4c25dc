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
from fedkeel.engine.auto import cores
from fedkeel.models import make_model

ROUNDS, SEEDS = 100, (0, 1, 2)
TASK = (
    "Digits, 50 clients, Dirichlet 0.1 per class, 10 per round, K = 10, batch 20, 100 rounds. The step size is the best of "
    "five on seed 0, by the mean test accuracy of the last ten rounds; the table shows seeds 0, 1 and 2 with it. Methods "
    "that are only defined when all clients take part (marked *) have all 50 in every round."
)
CACHE, TABLE, FINDINGS = (
    Path("results/digits-all.jsonl"),
    Path("results/digits-all.md"),
    Path("results/digits-all.findings.md"),
)
SGD, ADAPTIVE, LAMB = (0.01, 0.03, 0.1, 0.3, 1.0), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), (0.001, 0.003, 0.01, 0.03, 0.1)
# Methods whose step size is not called lr, or whose lr comes from theory.
SWEPT = {"fedsps": "eta_b"} | dict.fromkeys(("padamfed", "padamfed-vr", "scaffold-normalized"), "gamma")


def grid(name: str) -> tuple[str, tuple[float, ...]]:
    """What is swept, and over which values."""
    local = lookup(name).facts.local
    values = LAMB if local.startswith("LAMB") else ADAPTIVE if local.startswith(("AMSGrad", "Adam")) else SGD
    return SWEPT.get(name, "lr"), (0.03, 0.1, 0.3, 1.0, 3.0) if SWEPT.get(name) == "gamma" else values


def needs_all(name: str) -> bool:
    return any(field.name == "allow_partial" for field in fields(lookup(name)))  # type: ignore[arg-type]


def one(name: str, value: float, seed: int) -> dict[str, Any]:
    """One run."""
    torch.set_num_threads(1)
    fed = fk.load("digits").split("dirichlet_per_class", clients=50, concentration=0.1, seed=0)
    row = {"name": name, "value": value, "seed": seed}
    try:
        run = fk.train(
            lambda: make_model("mlp", (1, 8, 8), 10), fed, fk.algorithm(name, **{grid(name)[0]: value}),
            rounds=ROUNDS, cohort=50 if needs_all(name) else 10, local_steps=10, batch_size=20, seed=seed, engine="vectorized", progress=False,
        )  # fmt: skip
    except fk.RoundError as error:  # diverged to infinity
        return row | {"error": str(error)}
    scores = [r["test_accuracy"] for r in run.history]
    reached = next((t + 1 for t, score in enumerate(scores) if score >= 0.9), None)
    return row | {"final": scores[-1], "best": max(scores), "last10": statistics.mean(scores[-10:]), "to90": reached}


def run_all(jobs: list[tuple[str, float, int]], what: str) -> dict[tuple[str, float, int], dict[str, Any]]:
    """The jobs' results; those in the cache are not run again."""
    CACHE.parent.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in CACHE.read_text().splitlines()] if CACHE.exists() else []
    done = {(row["name"], row["value"], row["seed"]): row for row in rows}
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
            text = f"| {name}{' *' * needs_all(name)} | {step} | {shown(last)} | {shown([run['best'] for run in good])} | {rounds} |"
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
    TABLE.write_text(f"{heading}\n{table(done, best)}\n\n{findings}")
    print(TABLE.read_text())


if __name__ == "__main__":
    main()
