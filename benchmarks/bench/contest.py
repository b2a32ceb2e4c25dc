"""Contestants as live processes that take turns: each warms up once, then passes alternate."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads import CACHE, ROOT, WORKLOADS, prepare

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))
import environments as peers  # noqa: E402  (the same virtual environments as those of compare_weights.py)

PATIENCE = 300  # seconds until a contestant must answer
# torch's threads that wait for each other must sleep after a moment. Otherwise they would spin for minutes if another
# program uses one of the cores.
CALM = {"GOMP_SPINCOUNT": "10000"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Contestant:
    title: str
    script: str
    words: tuple[str, ...] = ()
    peer: str | None = None  # the peer whose virtual environment it needs
    sections: str = "abcdefjk"  # the workloads that it runs


CONTESTANTS = {
    "fedkeel": Contestant("fedkeel (auto)", "run_fedkeel.py", ("auto",)),
    "sequential": Contestant("fedkeel (sequential)", "run_fedkeel.py", ("sequential",), sections="acdefjk"),
    "fedkeel-last": Contestant("fedkeel (auto, channels_last)", "run_fedkeel.py", ("auto", "channels_last"), sections="cde"),
    "sequential-last": Contestant(
        "fedkeel (sequential, channels_last)", "run_fedkeel.py", ("sequential", "channels_last"), sections="cde"
    ),
    "sequential-padded": Contestant(
        "fedkeel (sequential), every batch padded to its longest text",
        "run_fedkeel.py",
        ("sequential", "padded"),
        sections="k",
    ),
    "compiled": Contestant("fedkeel (compiled)", "run_fedkeel.py", ("compiled",), sections="b"),
    "bare": Contestant("bare forward+backward, one thread", "run_bare.py", ("one",)),
    "spread": Contestant("bare forward+backward spread over the cores", "run_bare.py", ("spread",)),
    "bare-last": Contestant(
        "the same in channels_last, one thread", "run_bare.py", ("one", "channels_last"), sections="cde"
    ),
    "spread-last": Contestant(
        "the same in channels_last, spread over the cores", "run_bare.py", ("spread", "channels_last"), sections="cde"
    ),
    "batched": Contestant("batched products by hand on all threads", "run_bare.py", ("batched",), sections="ab"),
    "plain": Contestant("a plain PyTorch loop", "run_plain.py"),
    "pfl": Contestant("pfl-research", "run_pfl.py", peer="pfl", sections="abcdef"),
    "fedjax": Contestant("FedJAX", "run_fedjax.py", peer="fedjax", sections="ab"),
    "flwr": Contestant("Flower", "run_flower.py", peer="flwr", sections="abcd"),
}


class Broken(Exception):
    """A contestant that cannot take part, with the reason."""


class Live:
    """A contestant's process on a workload, warmed up."""

    def __init__(self, key: str, section: str) -> None:
        who = CONTESTANTS[key]
        python = peers.interpreter(who.peer) if who.peer else Path(sys.executable)
        self.log = CACHE / f"{section}-{key}.log"
        paths = os.pathsep.join((str(HERE), str(ROOT / "src")))
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [str(python), str(HERE / who.script), section, *who.words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | peers.QUIET | CALM | {"PYTHONPATH": paths},
            )  # fmt: skip
        self.facts = self._answer()

    def rounds(self, count: int) -> list[float]:
        """Runs `count` rounds -> the seconds of each."""
        assert self.process.stdin
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self._answer()["seconds"]

    def _answer(self) -> Row:
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise Broken(f"no answer within {PATIENCE} s")
        line = self.process.stdout.readline()
        if not line:
            words = [z for z in self.log.read_text().splitlines() if z.strip()]
            raise Broken(f"it ended: {words[-1][:200] if words else 'without a word'} (log: {self.log})")
        return json.loads(line)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def contest(section: str, passes: int, with_peers: bool, step: Callable[[str], None]) -> Iterator[Row]:
    """Rows of a workload: the seconds of every pass of every contestant, and why a contestant could not take part."""
    prepare(section)
    keys = [key for key, who in CONTESTANTS.items() if section in who.sections and (with_peers or not who.peer)]
    live: dict[str, Live] = {}
    try:
        for key in keys:
            step(f"starting {CONTESTANTS[key].title}")
            try:
                live[key] = Live(key, section)
            except (Broken, peers.Unavailable) as error:
                yield {"section": section, "who": key, "missing": str(error)}
        for number in range(passes):
            turn = list(live)
            for key in turn[number % len(turn) :] + turn[: number % len(turn)]:
                step(f"pass {number + 1} of {passes}: {CONTESTANTS[key].title}")
                seconds = live[key].rounds(WORKLOADS[section].rounds)
                facts = {name: z for name, z in live[key].facts.items() if name != "ready"}
                yield {"section": section, "who": key, "pass": number, "seconds": seconds, **facts}
    finally:
        for process in live.values():
            process.end()


def steps(section: str, passes: int, with_peers: bool) -> int:
    """How often `contest` calls its `step`."""
    count = sum(section in who.sections and (with_peers or not who.peer) for who in CONTESTANTS.values())
    return count * (passes + 1)
