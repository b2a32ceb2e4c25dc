"""(l) What checksums cost: their share of the time of a checkpoint, and of a run that writes checkpoints."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fedkeel as fk
import methods
from fedkeel.engine.state import checkpoint, store

Row = dict[str, Any]
LIMIT = 0.03
LARGE = "a checkpoint of 10,000,000 parameters, three vectors"
ROUND = "rounds on (a) with `out=`, fedavg"
RECORDS = "rounds on (a) with `out=`, scaffold, client records included"
POINTS = (LARGE, ROUND, RECORDS)
SAVES, ROUNDS = 5, 60  # of a pass


class Server(NamedTuple):
    x: Tensor
    m: Tensor
    v: Tensor


@contextmanager
def timed(spent: list[float]) -> Iterator[None]:
    """Adds the seconds of all checksums to spent[0]."""
    places = [(checkpoint, "checksum"), (store.Store, "_sum_now")]
    kept = [getattr(*place) for place in places]

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*given)
            finally:
                spent[0] += time.perf_counter() - start

        return call

    for place, function in zip(places, kept, strict=True):
        setattr(*place, counting(function))
    try:
        yield
    finally:
        for place, function in zip(places, kept, strict=True):
            setattr(*place, function)


def large(folder: Path) -> list[tuple[float, float]]:
    """(seconds of the checksums, seconds of everything) of every checkpoint."""
    server, spent, found = Server(*(torch.randn(10_000_000) for _ in range(3))), [0.0], []
    with timed(spent):
        for t in range(SAVES):
            spent[0], start = 0.0, time.perf_counter()
            checkpoint.save_checkpoint(folder / "new", folder / "old", t, server, {}, {}, {})
            found.append((spent[0], time.perf_counter() - start))
    return found


def rounds(fed: fk.Federation, name: str, folder: Path) -> list[tuple[float, float]]:
    """The same for a run that writes checkpoints as often as any run does."""
    w, spent = methods.W, [0.0]
    with timed(spent):
        run = fk.train(
            w.module, fed, name, rounds=ROUNDS, cohort=w.cohort, local_steps=w.steps, batch_size=w.batch,
            engine="sequential", evaluate_every=0, out=folder, progress=False,
        )  # fmt: skip
    return [(spent[0], sum(row["seconds"] for row in run.history))]


def checksums(passes: int, step: Callable[[str], None]) -> Iterator[Row]:
    fed = methods.federation()
    for number in range(passes):
        for who in POINTS:
            step(who)
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                method = "scaffold" if who == RECORDS else "fedavg"
                found = large(place) if who == LARGE else rounds(fed, method, place / "run")
            shares = [part / whole for part, whole in found]
            yield {"section": "l", "who": who, "pass": number, "shares": shares}


def section(rows: list[Row]) -> str:
    parts = ["## (l) Checksums", "", "Their share of the time, with everything that is written to the disk.", ""]
    parts += ["| part of | median | lowest | highest | target | |", "|---|---|---|---|---|---|"]
    for who in POINTS:
        shares = [z for row in rows if row["who"] == who for z in row["shares"]]
        if shares:
            middle = statistics.median(shares)
            verdict = f"<= {LIMIT:.0%} | {'met' if middle <= LIMIT else '**missed**'}"
            parts.append(f"| {who} | {middle:.1%} | {min(shares):.1%} | {max(shares):.1%} | {verdict} |")
    return "\n".join(parts) + "\n"
