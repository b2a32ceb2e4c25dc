"""Whole runs of a study on a Ray cluster, one core each.

Each run has its directory on this machine. A node that sees the same directory trains in it, and continues from the
checkpoint there, also after another node has died. A node that does not see the directory sends the results at the end.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedkeel.runs.from_config as from_config
from fedkeel.engine.state.directory import RESULTS
from fedkeel.errors import describe, in_words
from fedkeel.files import guarded, write_atomically
from fedkeel.runs.config import RunConfig
from fedkeel.study.running.on_node import data_of, train_in_place
from fedkeel.study.running.plan import StudyRun


class RayPool:
    """Gives all runs to Ray, which starts as many at a time as the cluster has cores."""

    size = 1 << 30

    def __init__(self, address: str) -> None:
        self.address = address
        self.pending: dict[Any, tuple[StudyRun, Path]] = {}  # Ray's task -> the run and its mark
        self.disconnect: Callable[[], None] | None = None

    def start(self, run: StudyRun, fed: Any) -> None:
        """fed is not used: the node that trains loads the data."""
        if self.disconnect is None:  # A study whose runs are all complete never connects.
            from fedkeel.engine.runners.ray import connect  # raises ValueError if Ray is not installed

            self.disconnect = connect(self.address)
        import ray

        gpus = ray.cluster_resources().get("GPU", 0) > 0 and run.config.device != "cpu"
        remote = ray.remote(_train_on_node).options(num_cpus=1, num_gpus=int(gpus), max_retries=3)
        mark = _mark(run.out)
        self.pending[remote.remote(run.config.given, mark, run.fresh, run.has_test)] = run, mark

    def ended(self) -> list[tuple[StudyRun, str | None]]:
        """Waits for the next run that ends."""
        import ray

        (done,), _ = ray.wait(list(self.pending))
        run, mark = self.pending.pop(done)
        mark.unlink(missing_ok=True)
        try:
            for name, content in ray.get(done).items():
                write_atomically(run.out / name, content)
        except ray.exceptions.RayTaskError as failed:
            return [(run, in_words(failed.cause))]
        except ray.exceptions.RayError as failed:
            return [(run, describe(failed))]
        run.tidy()
        return [(run, None)]

    def close(self) -> None:
        if self.disconnect is None:
            return
        import ray

        for task, (_, mark) in self.pending.items():
            ray.cancel(task, force=True)
            mark.unlink(missing_ok=True)
        self.pending = {}
        self.disconnect()
        self.disconnect = None


def _mark(out: Path) -> Path:
    """A file with a random name in the directory of a run. A node that sees this file sees the directory."""
    mark = out / f".{secrets.token_hex(8)}"
    guarded(out, lambda: out.mkdir(parents=True, exist_ok=True))
    guarded(mark, mark.touch)
    return mark


def _train_on_node(values: dict[str, Any], mark: Path, fresh: bool, has_test: bool) -> dict[str, bytes]:
    """One run on a node -> the files that this machine must write, if the node cannot write them itself."""
    import torch

    torch.set_num_threads(1)
    config = RunConfig(**values)
    # The other cores of the node are for other runs. These engines give the same bits as `sequential`.
    engine = "sequential" if config.engine in ("auto", "processes", "ray") else config.engine
    config = config.changed(engine=engine, ray_address="local")
    if mark.exists():
        train_in_place(config, mark.parent, fresh, has_test)
        return {}
    with tempfile.TemporaryDirectory(prefix="fedkeel-") as place:
        from_config.train(config, place, progress=False, fed=data_of(config, has_test))
        return {file: (Path(place) / file).read_bytes() for file in RESULTS if (Path(place) / file).exists()}
