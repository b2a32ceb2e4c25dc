"""Whole runs of a study spread over a Ray cluster, one core each."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedkeel.engine.state.directory import RESULTS
from fedkeel.errors import Busy, describe, in_words
from fedkeel.files import guarded, write_atomically
from fedkeel.runs import from_config
from fedkeel.runs.config import RunConfig

PATIENCE = 120.0  # seconds in which the lock of a process on a dead node must have ended, also on a network's file system


def run_all(
    configs: Sequence[RunConfig], outs: Sequence[Path], address: str = "local", fresh: Sequence[bool] = ()
) -> Iterator[tuple[int, str | None]]:
    """Carries out all runs, and yields (number, None or why it failed) as they end. fresh: which of them begin anew.

    Each run has its directory on this machine. A node that sees the same directory trains in it, and goes on from a
    checkpoint there, also after the death of another node; one that does not sends the results when it has them.
    """
    from fedkeel.engine.runners.ray import connect, ray

    disconnect = connect(address)
    with contextlib.ExitStack() as stack:
        stack.callback(disconnect)
        gpus = ray.cluster_resources().get("GPU", 0) > 0
        pending: dict[Any, tuple[int, Path]] = {}
        stack.callback(lambda: [ray.cancel(one, force=True) for one in pending])  # those that nobody waits for any more
        for number, (config, out) in enumerate(zip(configs, outs, strict=True)):
            mark = _mark(Path(out))
            stack.callback(mark.unlink, missing_ok=True)
            remote = ray.remote(_run).options(num_cpus=1, num_gpus=int(gpus and config.device != "cpu"), max_retries=3)
            anew = bool(fresh) and fresh[number]
            pending[remote.remote(config.given, mark, anew)] = number, Path(out)
        while pending:
            (done,), _ = ray.wait(list(pending))
            number, out = pending.pop(done)
            try:
                for name, content in ray.get(done).items():
                    write_atomically(out / name, content)
                error = None
            except ray.exceptions.RayTaskError as failed:
                error = in_words(failed.cause)
            except ray.exceptions.RayError as failed:
                error = describe(failed)
            yield number, error


def _mark(out: Path) -> Path:
    """A file of a random name in the directory of a run: who sees it sees the directory."""
    mark = out / f".{secrets.token_hex(8)}"
    guarded(out, lambda: (out.mkdir(parents=True, exist_ok=True), mark.touch()))
    return mark


def _run(values: dict[str, Any], mark: Path, fresh: bool) -> dict[str, bytes]:
    """One run on a node -> the files to be written on the driver's machine, if it cannot write there itself."""
    import torch

    torch.set_num_threads(1)
    config = RunConfig(**values)
    # The cores of a node are for other runs. These engines have the bits of sequential.
    how = "sequential" if config.engine in ("auto", "processes", "ray") else config.engine
    config = config.changed(engine=how, ray_address="local")
    if mark.exists():
        _run_there(config, mark.parent, fresh)
        return {}
    with tempfile.TemporaryDirectory(prefix="fedkeel-") as place:
        from_config.train(config, place, progress=False)
        return {file: (Path(place) / file).read_bytes() for file in RESULTS}


def _run_there(config: RunConfig, out: Path, fresh: bool) -> None:
    """One run in its own directory, once the process of a dead node that may still hold it is gone."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            from_config.train(config, out, resume=True, progress=False, fresh=fresh)
            return
        except Busy:
            if time.monotonic() > end:
                raise
            time.sleep(1.0)
