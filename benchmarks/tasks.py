"""Short runs of the papers' tasks on real data: writes results/tasks.md.

    python benchmarks/tasks.py --data-dir DATA --minilm FOLDER [--only cifar10]

Every run is a separate process, so that its peak memory can be measured. Finished runs are kept in results/tasks.jsonl and
not run again. MiniLM is the folder of all-MiniLM-L6-v2. CIFAR-10 is read from --cifar-dir, by default the data directory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTED = 10_000  # test samples at most
CACHE, TABLE, FINDINGS = (Path("results") / name for name in ("tasks.jsonl", "tasks.md", "tasks.findings.md"))

DIRICHLET = {"split": "dirichlet_per_class", "clients": 100, "concentration": 0.1, "cohort": 10}
# Half of the clients in a round: with fewer, the class that more of them have decides the answer for all texts.
LORA = {
    "data": "sst2", "model": "hf:MINILM", "length": 48, "lora_rank": 8, "lora_layers": 2, "rounds": 40, "local_steps": 2,
    "batch_size": 8, "clients": 100, "cohort": 50, "split": "dirichlet_per_class", "concentration": 0.1,
    "hyperparameters": {"lr": 0.002, "server_lr": 1.0},
}  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    "mnist": DIRICHLET | {"data": "mnist", "model": "mlp3", "rounds": 100, "local_steps": 10, "batch_size": 64}
    | {"algorithm": "gradma", "hyperparameters": {"lr": 0.05}},
    "fashion-mnist": DIRICHLET | {"data": "fashion-mnist", "model": "cnn", "rounds": 60, "local_steps": 10, "batch_size": 32}
    | {"algorithm": "padamfed", "concentration": 1.0},
    "cifar10-lenet5": DIRICHLET | {"data": "cifar10", "model": "lenet5", "rounds": 60, "local_steps": 10, "batch_size": 50}
    | {"algorithm": "fadamgt", "hyperparameters": {"lr": 0.001}, "augment": "crop-flip", "concentration": 0.6},
    "cifar10-resnet18-gn": {"data": "cifar10", "model": "resnet18-gn", "rounds": 4, "local_steps": 5, "batch_size": 50}
    | {"algorithm": "fedlada", "hyperparameters": {"lr": 0.001}, "clients": 100, "cohort": 4, "augment": "crop-flip"}
    | {"split": "dirichlet_per_client", "concentration": 0.6},
    "imdb-lstm": {"data": "imdb", "model": "lstm", "length": 128, "split": "beta", "clients": 50, "cohort": 10}
    | {"rounds": 40, "local_steps": 10, "batch_size": 32, "algorithm": "local-adam", "hyperparameters": {"lr": 0.002}},
    "shakespeare": {"data": "shakespeare", "model": "char-lstm", "split": "by_key", "cohort": 10, "rounds": 20}
    | {"local_steps": 5, "batch_size": 32, "algorithm": "local-adam", "hyperparameters": {"lr": 0.003}},
    "sst2-fedit-adam": LORA | {"algorithm": "fedit-adam"},
    "sst2-fedit-adamet": LORA | {"algorithm": "fedit-adamet"},
    "sst2-fedit-adamgt": LORA | {"algorithm": "fedit-adamgt"},
}  # fmt: skip


def one(name: str, places: argparse.Namespace) -> dict[str, Any]:
    """Trains one task in this process."""
    import torch

    from fedkeel.engine.evaluation import evaluate
    from fedkeel.engine.objective import cross_entropy, make_flat
    from fedkeel.runs.config import RunConfig, resolve
    from fedkeel.runs.from_config import task
    from fedkeel.runs.from_config import train as run

    settings = {key: z.replace("MINILM", places.minilm) if isinstance(z, str) else z for key, z in TASKS[name].items()}
    folder = places.cifar_dir if settings["data"] == "cifar10" else places.data_dir
    config = resolve(RunConfig(**settings, data_dir=folder, evaluate_every=0))
    make, fed = task(config)
    if len(fed.test[1]) > TESTED:  # half a million windows of Shakespeare would take longer to test than to train
        some = torch.randperm(len(fed.test[1]), generator=torch.Generator().manual_seed(0))[:TESTED]
        fed = dataclasses.replace(fed, test=tuple(z[some] for z in fed.test))
    flat = make_flat(make, config.seed, "cpu", None)
    with torch.no_grad():
        before = evaluate(flat, flat.vector(), flat.read_buffers(), cross_entropy, fed.test, fed.prepare)
    start = time.perf_counter()
    result = run(config, fed=fed, progress=False)
    seconds = (time.perf_counter() - start) / config.rounds
    own, workers = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    scores = [row["test_accuracy"] for row in result.history if row["test_accuracy"] is not None]
    return {
        "name": name, "config": {key: z for key, z in config.as_dict().items() if key != "data_dir"},
        "d": len(result.params),
        "before": before["test_accuracy"], "after": scores[-1], "seconds": seconds, "engine": result.engine,
        "samples": [len(fed.y), len(fed.test[1])], "megabytes": max(own, workers) / 1024, "clients": len(fed),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| task | model (trained numbers) | method | split | rounds | accuracy before | after | s a round | peak MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        config = row["config"]
        model = "MiniLM + LoRA" if config["model"].startswith("hf:") else config["model"]
        numbers = ", ".join(f"{key} {config[key]:g}" for key in ("concentration", "beta_a", "beta_b") if key in config)
        lines.append(
            f"| {config['data']} ({row['samples'][0]:,} + {row['samples'][1]:,}) | {model} ({row['d']:,}) "
            f"| {config['algorithm']}, lr {config['hyperparameters'].get('lr', 'from theory')} "
            f"| {row['clients']} clients, {config['cohort']} a round, {config['split']} {numbers} | {config['rounds']} "
            f"| {row['before']:.3f} | {row['after']:.3f} | {row['seconds']:.2f} | {row['megabytes']:.0f} |"
        )
    return "\n".join(lines)


def write(done: dict[str, dict[str, Any]]) -> None:
    missing = ", ".join(name for name in TASKS if name not in done)
    TABLE.write_text(
        "# The papers' tasks on real data\n\nMade by `python benchmarks/tasks.py`. Short, untuned runs of each kind; "
        "accuracy is on test data (10,000 samples if there are more), before round 1 and after the last. Seconds (one test "
        "included) and memory (the largest process) are of a 2-core machine that was busy with other work.\n\n"
        + table([done[name] for name in TASKS if name in done])
        + (f"\n\nNot run yet: {missing}.\n" if missing else "\n")
        + (f"\n{FINDINGS.read_text()}" if FINDINGS.exists() else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="~/data", help="folder of the data sets")
    parser.add_argument("--cifar-dir", help="folder of the complete CIFAR-10")
    parser.add_argument("--minilm", default="", help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--only", choices=list(TASKS), help="run this task in this process, and print its result")
    places = parser.parse_args()
    places.cifar_dir = places.cifar_dir or places.data_dir
    if places.only:
        print(json.dumps(one(places.only, places)))
        return
    done = {row["name"]: row for row in map(json.loads, CACHE.read_text().splitlines())} if CACHE.exists() else {}
    for name in TASKS:
        if name in done:
            continue
        print(name, flush=True)
        ended = subprocess.run([sys.executable, *sys.argv, "--only", name], stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode:
            print(f"{name} failed; run this again to continue", file=sys.stderr)
            continue
        done[name] = json.loads(ended.stdout.splitlines()[-1])
        with CACHE.open("a") as file:
            file.write(json.dumps(done[name]) + "\n")
    write(done)
    print(TABLE.read_text())


if __name__ == "__main__":
    main()
