"""Sends the rows of a run's history to trackers: TensorBoard, MLflow or Weights & Biases.

fedkeel needs none of their packages. It imports a package only if you name its tracker.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Log = Callable[[Row], None]


def check(names: Mapping[str, str]) -> None:
    """Raises if the package of a tracker is not installed, or if its place cannot be used.

    names: tracker -> its place. The package of a tracker has the tracker's name.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            raise ValueError(f"{name}: its package is not installed; pip install {name}") from None
    if (place := names.get("tensorboard")) and Path(place).exists() and not Path(place).is_dir():
        raise ValueError(f"tensorboard = {place!r} is not allowed; it must be a directory")
    if "mlflow" in names:
        # A process that ends makes a new database. Otherwise parallel runs would all try to make it.
        with ProcessPoolExecutor(1) as aside:
            if why := aside.submit(_open_mlflow, names["mlflow"]).result():
                raise ValueError(f"mlflow: {why}")


def numbers(row: Row) -> dict[str, float]:
    """The columns of a row that hold a number, without `round`."""
    return {
        key: float(z) for key, z in row.items() if isinstance(z, int | float) and key != "round" and not isinstance(z, bool)
    }


@contextlib.contextmanager
def tracked(names: Mapping[str, str], name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    """A function to call with every row of a run. names: tracker -> its place ("" for its default)."""
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(_begun(tracker, place, name, config)) for tracker, place in names.items()]

        def log(row: Row) -> None:
            for one in logs:
                one(row)

        yield log


@contextlib.contextmanager
def _begun(tracker: str, place: str, name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    """Starts a tracker. If that fails, raises a ValueError with the tracker's message."""
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(TRACKERS[tracker](place, name, config))
        except Exception as error:
            raise ValueError(f"{tracker}: {' '.join(str(error).split())}") from error
        yield log


@contextlib.contextmanager
def _tensorboard(place: str, name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = Path(place or "runs/tensorboard") / name
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder))
    # Replaces the rows that an earlier process sent: this process sends all rows of the run, from the first round on.
    writer.add_event(Event(wall_time=time.time(), step=0, session_log=SessionLog(status=SessionLog.START)))

    def log(row: Row) -> None:
        values = [Summary.Value(tag=key, simple_value=z) for key, z in numbers(row).items()]
        writer.add_event(Event(wall_time=time.time(), step=row["round"], summary=Summary(value=values)))

    try:
        yield log
    finally:
        writer.close()


def _open_mlflow(place: str) -> str | None:
    """Makes MLflow's database and experiment if they are missing. Returns why that fails, or None."""
    import mlflow

    try:
        if place:
            mlflow.set_tracking_uri(place)
        mlflow.set_experiment("fedkeel")
    except Exception as error:
        return " ".join(str(error).split())
    return None


@contextlib.contextmanager
def _mlflow(place: str, name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    import mlflow

    if why := _open_mlflow(place):
        raise ValueError(why)
    with mlflow.start_run(run_name=name):
        mlflow.log_params({key: str(z) for key, z in config.items()})
        try:
            yield lambda row: mlflow.log_metrics(numbers(row), step=row["round"])
        except KeyboardInterrupt:
            mlflow.end_run("KILLED")
            raise


@contextlib.contextmanager
def _wandb(place: str, name: str, config: Mapping[str, Any]) -> Iterator[Log]:
    import wandb

    run = wandb.init(project=place or "fedkeel", name=name, config=dict(config), reinit=True)
    try:
        yield lambda row: run.log(numbers(row), step=row["round"])
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()


TRACKERS = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
