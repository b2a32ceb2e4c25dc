"""Traces of when clients are there: CSV files of our own, and FedScale's pickled dictionaries."""

from __future__ import annotations

import csv
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import numpy as np

Line = tuple[int, float, float]  # client, from, to


def read_trace(path: str) -> np.ndarray:
    """[L, 3] client, from and to."""
    import numpy as np

    try:
        with open(Path(path).expanduser(), "rb") as file:
            pickled = file.read(2)[:1] == b"\x80"  # how every pickle since protocol 2 begins
            file.seek(0)
            lines = list(_of_fedscale(path, file) if pickled else _of_csv(path, file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"participation: {path} cannot be read: {error}") from None
    if not lines:
        raise ValueError(f"participation: {path} has no lines with client, from and to")
    return np.array(lines)


def _of_csv(path: str, file: IO[bytes]) -> Iterator[Line]:
    rows = csv.DictReader(file.read().decode().splitlines(), skipinitialspace=True)
    for number, row in enumerate(rows, 2):
        try:
            line = int(row["client"]), float(row["from"]), float(row["to"])
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"participation: {path}, line {number}: it must have the columns client, from and to with a number in each"
            ) from None
        if not _is_valid(*line):
            raise ValueError(f"participation: {path}, line {number}: client >= 0 and 0 <= from < to are required")
        yield line


def _is_valid(client: int, start: float, stop: float) -> bool:
    return client >= 0 and 0 <= start < stop and math.isfinite(stop)


def _of_fedscale(path: str, file: IO[bytes]) -> Iterator[Line]:
    """FedScale's `client_behave_trace`: client -> {"active": [...], "inactive": [...], "finish_time": n, ...}.

    A client is there from an `active` second until the `inactive` second of the same place. Clients have the numbers 0, 1,
    ... in the order of the file, because FedScale counts from 1.
    """
    try:
        found = _PlainPickle(file).load()
        for client, behaviour in enumerate(found.values()):
            for start, stop in zip(behaviour["active"], behaviour["inactive"], strict=True):
                if _is_valid(client, float(start), float(stop)):
                    yield client, float(start), float(stop)
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"participation: {path} is no trace in FedScale's form: {error}") from None


class _PlainPickle(pickle.Unpickler):
    """Reads dictionaries, lists, numbers and texts. Anything else in a pickle could run code, so it is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which is neither a number nor a text")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside the file")
