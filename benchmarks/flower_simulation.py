"""Compares Flower's simulation with fedkeel's sequential engine for every method: final weights, and seconds of a round.

    python benchmarks/flower_simulation.py [METHOD ...]      # needs: pip install 'flwr[simulation]'

For every method, `fedkeel deploy init` writes an app and `flwr run` starts it on one SuperLink. Flower's actors have one
core, the sequential engine has one thread. results/flower_simulation.jsonl keeps the rows, so a second call runs only
what is missing. results/flower_simulation.md is made from the rows.
"""
# ruff: noqa: E402

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.deploy.flower_network import BIN, environment, flwr, free_port, status, wait_for, warm_commands

import fedkeel as fk
from fedkeel.deploy.project import init
from fedkeel.runs.config import RunConfig, resolve
from fedkeel.runs.from_config import train as run

ROWS, PAGE = ROOT / "results/flower_simulation.jsonl", ROOT / "results/flower_simulation.md"
TASK = {"clients": 6, "cohort": 4, "rounds": 10, "local_steps": 10, "model": "mlp", "concentration": 0.5}
SECONDS = 900  # for one method


def config_of(name: str) -> RunConfig:
    """The run of a method at its defaults. Methods made for full participation must allow partial participation."""
    partial = {"allow_partial": True} if hasattr(fk.algorithm(name), "allow_partial") else {}
    return resolve(RunConfig(algorithm=name, engine="sequential", hyperparameters=partial, **TASK))


def fastest_round(directory: Path) -> float:
    """Seconds of the fastest round after the first. On a shared machine, other processes slow down the other rounds."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return float(min(row["seconds"] for row in rows[1:]))


@contextlib.contextmanager
def superlink(folder: Path) -> Iterator[dict[str, str]]:
    """Starts a SuperLink with Flower's simulation runtime, called "sim". Yields the environment for `flwr`.

    Simulations are forked from a process that has loaded torch, and share a Ray cluster. So no round includes a start.
    """
    home, port, running = folder / "flwr", free_port(), []
    env = environment(home)
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    os.environ |= {"RAY_worker_niceness": "0"}  # by default, Ray's workers have the lowest priority
    ray = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    env["RAY_ADDRESS"] = ray.address
    warm = warm_commands(folder, env)
    link = [str(BIN / "flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    link.append("--disable-runtime-dependency-installation")
    try:
        for command, sign in ((warm, "ready for orders"), (link, "Uvicorn running")):
            log = folder / f"{len(running)}.log"
            with open(log, "wb") as file:
                running.append(subprocess.Popen(command, env=env, cwd=folder, stdout=file, stderr=file))
            wait_for(lambda log=log, sign=sign: sign in log.read_text(), 120, f"{command} does not start")
        yield env
    finally:
        for process in running:
            process.terminate()
            process.wait(timeout=30)
        ray.shutdown()


def in_flower(app: Path, env: dict[str, str]) -> None:
    """Runs the app until it is complete."""
    federation = f"num-supernodes={TASK['clients']} client-resources-num-cpus=1"
    number = re.findall(r"run (\d+)", flwr(env, "run", str(app), "sim", "--federation-config", federation))[0]

    end = time.monotonic() + SECONDS
    while not (app / "run/summary.json").exists():
        with contextlib.suppress(TimeoutError):  # asking Flower more often would slow down the rounds
            wait_for((app / "run/summary.json").exists, 30, "")
            break
        state = status(env, "sim", int(number))
        if time.monotonic() > end:
            flwr(env, "stop", number, "sim")  # otherwise the next run would wait for its core
            raise TimeoutError(f"{state} after {SECONDS} s")
        if state == "finished:failed":
            raise RuntimeError(f"{state}: {flwr(env, 'log', number, 'sim', '--show').strip()[-300:]}")


def measure(name: str, folder: Path, env: dict[str, str]) -> dict[str, Any]:
    config, here, app = config_of(name), folder / f"here-{name}", folder / f"app-{name}"
    start = time.monotonic()
    run(config, here, progress=False)
    init(app, here)
    in_flower(app, env)
    ours, theirs = (load_file(z / "model.safetensors") for z in (here, app / "run"))
    return {
        "method": name,
        "equal": all(torch.equal(ours[key], theirs[key]) for key in ours),
        "flower": fastest_round(app / "run"),
        "sequential": fastest_round(here),
        "seconds": time.monotonic() - start,
        "load": os.getloadavg()[0],
    }


def page(rows: list[dict[str, Any]]) -> str:
    good = [row for row in rows if "error" not in row]
    same = sum(row["equal"] for row in good)
    ratios = sorted(row["flower"] / row["sequential"] for row in good)
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    spread = f"{middle:.1f} times as long (median of the methods; half of them {low:.1f} to {high:.1f})"
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("flwr", "ray", "torch"))
    task = "{clients} clients, {cohort} per round, {rounds} rounds, {local_steps} local steps, MLP on digits".format(**TASK)
    lines = [
        "# The same app in Flower's simulation, every method",
        "",
        f"`python benchmarks/flower_simulation.py`; {versions}; {task}; one actor of one core, on a shared machine.",
        f"{same} of {len(rows)} methods end with the weights of fedkeel's sequential engine, bit for bit.",
        f"A round takes {spread}",
        "as with `sequential`. The time is the fastest round that the server measured, without the start of processes.",
        "Other processes on the machine can slow down a single row.",
        "",
        "| method | weights | a round in Flower | sequential | ratio |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['method']} | not run: {row['error']} | | | |")
            continue
        rounds = f"{row['flower']:.3f} s | {row['sequential']:.3f} s | {row['flower'] / row['sequential']:.1f}"
        lines.append(f"| {row['method']} | {'equal' if row['equal'] else 'DIFFERENT'} | {rounds} |")
    return "\n".join([*lines, ""])


def main() -> None:
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    known = {row["method"]: row for row in rows if row["task"] == TASK}
    missing = sys.argv[1:] or [name for name in fk.algorithms() if "error" in known.get(name, {"error": "not run"})]
    folder = Path(tempfile.mkdtemp(prefix="fedkeel-flower-"))
    with superlink(folder) if missing else contextlib.nullcontext({}) as env:
        for name in missing:
            try:
                row = measure(name, folder, env)
            except (ValueError, RuntimeError, TimeoutError) as error:
                row = {"method": name, "error": " ".join(str(error).split())}
            known[name] = row | {"task": TASK}
            ROWS.write_text("".join(json.dumps(known[one]) + "\n" for one in sorted(known)))
            print(json.dumps(row), flush=True)
    PAGE.write_text(page([known[one] for one in sorted(known)]))


if __name__ == "__main__":
    main()
