"""The same app in Flower's simulation and the same run in fedkeel's engines: seconds of a round, and equal weights.

    python benchmarks/flower_simulation.py [METHOD ...]      # needs: pip install 'flwr[simulation]'

Prints a table. One core for Flower's actors and one thread for the sequential engine; the app's start (seconds in which
SuperLink, Ray and torch are loaded) is not counted, only the rounds as the server measures them.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.flower_network import BIN, call, environment, free_port, wait_for

from fedkeel.config import RunConfig, resolve, run
from fedkeel.deploy.project import init

METHODS = ["fedavg", "scaffold", "fedlada", "fadamgt", "padamfed", "gradma"]
TASK = {"clients": 20, "cohort": 5, "rounds": 10, "local_steps": 10, "model": "mlp", "concentration": 0.5}


def median_round(directory: Path) -> float:
    """Median seconds of a round, without the first, in which processes warm up."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["seconds"] for row in rows[1:])


def in_flower(folder: Path, app: Path, env: dict[str, str], clients: int) -> float:
    """Runs the app; seconds from the command to the result."""
    start = time.monotonic()
    federation = f"num-supernodes={clients} client-resources-num-cpus=1 init-args-num-cpus=1"
    told = call([str(BIN / "flwr"), "run", str(app), "sim", "--federation-config", federation], env, folder)
    number = re.findall(r"run (\d+)", told)[0]
    while not (app / "run/summary.json").exists():
        time.sleep(2)
        status = json.loads(call([str(BIN / "flwr"), "list", "sim", "--run-id", number, "--format", "json"], env, folder))
        if status["runs"][0]["status"] == "finished:failed":
            raise RuntimeError(call([str(BIN / "flwr"), "log", number, "sim", "--show"], env, folder)[-3000:])
    return time.monotonic() - start


def main() -> None:
    methods = sys.argv[1:] or METHODS
    folder = Path(tempfile.mkdtemp(prefix="fedkeel-flower-"))
    env, port = environment(folder / "flwr"), free_port()
    (folder / "flwr").mkdir()
    (folder / "flwr/config.toml").write_text(f'[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    words = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "superlink.log"
    with open(log, "wb") as file:
        command = [str(BIN / "flower-superlink"), *words, "--disable-runtime-dependency-installation"]
        link = subprocess.Popen(command, env=env, cwd=folder, stdout=file, stderr=file)
    try:
        wait_for(lambda: "Uvicorn running" in log.read_text(), 120, "the SuperLink does not start")
        print(f"{TASK}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
        print(
            "| method | a round in Flower's simulation | sequential | ratio | whole run in Flower | sequential | weights |"
        )
        print("|---|---|---|---|---|---|---|")
        for name in methods:
            config = resolve(RunConfig(algorithm=name, engine="sequential", **TASK))
            start = time.monotonic()
            run(config, folder / f"here-{name}", progress=False)
            here = time.monotonic() - start
            app = folder / f"app-{name}"
            init(app, folder / f"here-{name}")
            whole = in_flower(folder, app, env, config.clients)
            theirs, ours = median_round(app / "run"), median_round(folder / f"here-{name}")
            a, b = (load_file(z / "model.safetensors") for z in (folder / f"here-{name}", app / "run"))
            same = "equal" if all(torch.equal(a[key], b[key]) for key in a) else "DIFFERENT"
            rounds = f"{theirs:.3f} s | {ours:.3f} s | {theirs / ours:.1f}"
            print(f"| {name} | {rounds} | {whole:.0f} s | {here:.1f} s | {same} |", flush=True)
    finally:
        link.terminate()
        link.wait(timeout=30)


if __name__ == "__main__":
    main()
