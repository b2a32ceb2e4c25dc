"""Rows of a run's history, told to a tracker as well: TensorBoard, MLflow or Weights & Biases, through their own clients.

Nothing of theirs is imported unless asked for, and none of them is needed by fedkeel.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Log = Callable[[Row], None]


def check(names: Mapping[str, str]) -> None:
    """Raises if the package of a tracker is not there; it has the tracker's name."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            raise ValueError(f"{name}: its package is not installed; pip install {name}") from None


def numbers(row: Row) -> dict[str, float]:
    """What of a row is a number."""
    return {
        key: float(z) for key, z in row.items() if isinstance(z, int | float) and key != "round" and not isinstance(z, bool)
    }


@contextlib.contextmanager
def tracked(names: Mapping[str, str], name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    """A function to be called with every row of a run. names: tracker -> where it keeps things ("" for its default)."""
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(_begun(tracker, place, name, config)) for tracker, place in names.items()]

        def log(row: Row) -> None:
            for one in logs:
                one(row)

        yield log


@contextlib.contextmanager
def _begun(tracker: str, place: str, name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    """A tracker that has begun; if it cannot, its own words say why."""
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(TRACKERS[tracker](place, name, config))
        except Exception as error:
            raise ValueError(f"{tracker}: {' '.join(str(error).split())}") from error
        yield log


@contextlib.contextmanager
def _tensorboard(place: str, name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = Path(place or "runs/tensorboard") / name
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder))
    import time

    def log(row: Row) -> None:
        values = [Summary.Value(tag=key, simple_value=z) for key, z in numbers(row).items()]
        writer.add_event(Event(wall_time=time.time(), step=row["round"], summary=Summary(value=values)))

    try:
        yield log
    finally:
        writer.close()


@contextlib.contextmanager
def _mlflow(place: str, name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    import mlflow

    if place:
        mlflow.set_tracking_uri(place)
    mlflow.set_experiment("fedkeel")
    with mlflow.start_run(run_name=name):
        mlflow.log_params({key: str(z) for key, z in config.items()})
        yield lambda row: mlflow.log_metrics(numbers(row), step=row["round"])


@contextlib.contextmanager
def _wandb(place: str, name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    import wandb

    run = wandb.init(project=place or "fedkeel", name=name, config=dict(config), reinit=True)
    try:
        yield lambda row: run.log(numbers(row), step=row["round"])
    finally:
        run.finish()


TRACKERS = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
