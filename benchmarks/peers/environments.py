"""The peers, and a virtual environment or a clone for each under .venv-peers/, which git ignores."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".venv-peers"
TORCH = "torch==2.13.0"
QUIET = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "WANDB_MODE": "disabled",
}


class Unavailable(Exception):
    """A peer that could not be installed or run, with the reason."""


@dataclass(frozen=True)
class Peer:
    title: str
    requirements: tuple[str, ...] = ()  # the first is the peer itself; none: it runs in this interpreter
    clone: str = ""  # owner/name on GitHub of a peer that is no package; you clone it, see clone_of
    commit: str = ""  # the commit of the clone that was compared


PEERS = {
    "torch": Peer("torch.optim"),
    "flwr": Peer("Flower", ("flwr[simulation]==1.41.0", TORCH)),
    # jax.tree_map, which this FedJAX calls, was removed from later releases of jax; optax and haiku of its time go with it
    "fedjax": Peer(
        "FedJAX", ("fedjax==0.0.17", "jax==0.4.30", "jaxlib==0.4.30", "optax==0.2.2", "dm-haiku==0.0.12", "numpy<2")
    ),
    "pfl": Peer("pfl-research", ("pfl[pytorch]==0.6.0", TORCH)),
    "fluke": Peer("fluke", ("fluke-fl==0.8.1", TORCH)),
    "fedlab": Peer("FedLab", ("fedlab==1.3.0", TORCH)),
    "flgo": Peer("FLGo", ("flgo==0.4.4", TORCH)),
    "fairscale": Peer("FairScale", ("fairscale==0.4.13", TORCH)),
    "flsimulator": Peer("FL-Simulator", clone="woodenchild95/FL-Simulator", commit="502bec6"),
    "fedau": Peer("IBM/fedau", clone="IBM/fedau", commit="6e9cce9"),
    "fedacg": Peer("geehokim/FedACG", clone="geehokim/FedACG", commit="62b6e95"),
    "autotuned": Peer("auto-tuned-FL", clone="jlylekim/auto-tuned-FL", commit="15ba33c"),
    "fedawe": Peer("mingxiang12/FedAWE", clone="mingxiang12/FedAWE", commit="e0b8538"),
    "fadas": Peer("yujiaw98/FADAS", clone="yujiaw98/FADAS", commit="8c4df23"),
    "fedmuon": Peer("junkangLiu0/FedMuon", clone="junkangLiu0/FedMuon", commit="f3972e2"),
}


def release(peer: Peer) -> str:
    if peer.clone:
        return peer.commit
    return peer.requirements[0].split("==")[1] if peer.requirements else version("torch")


def interpreter(name: str) -> Path:
    """The peer's Python, installed on first use."""
    peer = PEERS[name]
    if not peer.requirements:
        return Path(sys.executable)
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    place, wanted = HOME / name, "\n".join(peer.requirements)
    ready = place / ".ready"
    python = place / "bin" / "python"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {peer.title} {release(peer)} ...", flush=True)
        _run(name, [sys.executable, "-m", "venv", "--clear", str(place)], "venv")
        _run(name, [str(python), "-m", "pip", "install", "--quiet", *peer.requirements], "pip")
        ready.write_text(wanted)
    return python


def clone_of(peer: Peer) -> Path:
    """The folder of a peer that is no package. This repository neither contains nor fetches such code."""
    place = HOME / "clones" / peer.clone.split("/")[1]
    command = f"git clone https://github.com/{peer.clone} .venv-peers/clones/{place.name}"
    if not place.is_dir():
        raise Unavailable(f"its code is not here; run `{command}` and check out {peer.commit}")
    found = subprocess.run(["git", "-C", str(place), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if not found.stdout.startswith(peer.commit):
        raise Unavailable(f"the clone is at {found.stdout[:7] or 'no commit'}; check out {peer.commit}")
    return place


def run(name: str) -> Path:
    """Runs the peer's script on the problems in HOME / "work" -> the file with its weights."""
    work = HOME / "work"
    peer = PEERS[name]
    arguments = [str(work), name, *([str(clone_of(peer))] if peer.clone else [])]
    python = interpreter(name)
    print(f"running {peer.title} ...", flush=True)
    _run(name, [str(python), str(HERE / f"run_{name}.py"), *arguments], "run")
    return work / f"{name}.npz"


def _run(name: str, command: list[str], what: str) -> None:
    """A command whose output goes to a log file; its last words are the reason if it fails."""
    log = HOME / "work" / f"{name}-{what}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as out:
        status = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | QUIET, check=False
        ).returncode
    if status:
        lines = [line for line in log.read_text().splitlines() if line.strip() and not line.startswith("WARNING")]
        raise Unavailable(f"{what} failed: {lines[-1] if lines else status}")
