"""Callbacks: your functions that look at a run after every round, add numbers to its history, and may stop it.

A callback is called as callback(row, state). It may return numbers, which become columns of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from fedkeel.core.hyperparameters import is_number, python_number
from fedkeel.errors import refuse

if TYPE_CHECKING:
    from fedkeel.engine.result import Run

Callback = Callable[[dict[str, Any], "RoundState"], Mapping[str, float] | None]


@dataclass
class RoundState:
    """What a callback can see after a round, and the way to stop the run."""

    history: list[dict[str, Any]]  # the rows so far, the newest last; after a resume, those of earlier rounds too
    evaluated: bool  # did this round end with an evaluation?
    make_run: Callable[[], Run]
    reason: str = field(default="", init=False)  # why the run stops; empty: it goes on

    @property
    def run(self) -> Run:
        """The run so far, as `train` would return it now."""
        if self._run is None:
            self._run = self.make_run()
        return self._run

    @property
    def model(self) -> nn.Module:
        """A copy of the global model in evaluation mode. You may change it."""
        return self.run.model

    def stop(self, reason: str = "a callback stopped the run") -> None:
        """Makes this round the last one."""
        self.reason = reason

    _run: Run | None = field(default=None, init=False)


def check_callbacks(callbacks: Any) -> list[Callback]:
    if callable(callbacks) or not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise refuse("callbacks", callbacks, "a list of functions that take (row, state)")
    return list(callbacks)


def call_all(callbacks: Sequence[Callback], row: dict[str, Any], state: RoundState) -> str:
    """Calls them one after the other -> why the run stops, or an empty text.

    What one callback returns is in the row that the next one sees.
    """
    for callback in callbacks:
        returned = callback(row, state)
        if returned is not None:
            row |= new_columns(returned, row, f"callbacks: {callback_name(callback)}")
    return state.reason


def callback_name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def new_columns(returned: Any, row: Mapping[str, Any], who: str) -> dict[str, float]:
    """The numbers that a function of the user returned, as columns that the row does not have yet."""
    if not isinstance(returned, Mapping):
        raise ValueError(f"{who} returned a {type(returned).__name__}; it must be a dict of names and numbers, or None")
    found: dict[str, float] = {}
    for name, value in returned.items():
        value = python_number(value.item() if hasattr(value, "item") else value)
        if not isinstance(name, str) or name in row:
            raise ValueError(f"{who} returned {name!r}, which is not a new name for a column of the history")
        if not is_number(value) and not isinstance(value, bool | float):  # NaN and infinity are floats
            raise ValueError(f"{who} returned {name} = {value!r}, which is not a number")
        found[name] = value
    return found


SMALLER = ("loss", "error", "norm", "drift", "perplexity", "spread")  # numbers with these words are better if smaller
LARGER = ("accuracy", "f1", "auroc", "auc", "precision", "recall", "r2", "score", "cosine")


def smaller_is_better(column: str) -> bool | None:
    """Is a smaller number in this column of the history better? None: its name does not say."""
    words = column.lower().replace("-", "_")
    if any(word in words for word in LARGER):
        return False
    return True if any(word in words for word in SMALLER) else None


@dataclass(frozen=True)
class EarlyStopping:
    """A callback that stops a run when a number of its history has not improved for `patience` evaluations.

    It looks at the whole history in every round and keeps nothing itself. So a run that is killed and resumed stops at the
    same round, and one object can serve many runs.

    monitor: a column of the history, such as val_accuracy or val_loss.
    min_delta: a smaller improvement does not count.
    mode: "max" or "min"; by default the name of the column says which is better.

    >>> fk.train(model, fed, "fedavg", validation=0.1, callbacks=[fk.EarlyStopping("val_accuracy", patience=10)])
    """

    monitor: str = "val_accuracy"
    patience: int = 10
    min_delta: float = 0.0
    mode: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.monitor, str) or not self.monitor:
            raise refuse("monitor", self.monitor, "the name of a column of the history")
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 1:
            raise refuse("patience", self.patience, "a whole number >= 1")
        if not is_number(self.min_delta) or self.min_delta < 0:
            raise refuse("min_delta", self.min_delta, "a number >= 0")
        if self.mode not in ("min", "max", None):
            raise refuse("mode", self.mode, "'min' or 'max'")
        if self.mode is None and smaller_is_better(self.monitor) is None:
            raise ValueError(f"mode = None is not allowed for monitor = {self.monitor!r}; it must be 'min' or 'max'")

    def __call__(self, row: dict[str, Any], state: RoundState) -> None:
        if self.monitor not in row and state.evaluated:
            columns = ", ".join(sorted(row))
            hint = "; val_ columns need validation=, such as 0.1" if self.monitor.startswith("val_") else ""
            raise ValueError(f"monitor = {self.monitor!r} is not a column of the history ({columns}){hint}")
        smaller = self.mode == "min" if self.mode else smaller_is_better(self.monitor)
        best, since = None, 0  # since: evaluations since the last improvement
        for one in state.history:
            if (score := one.get(self.monitor)) is None:
                continue
            score = -score if smaller else score
            better = score == score and (best is None or score > best + self.min_delta)  # NaN is never better
            best, since = (score, 0) if better else (best, since + 1)
        if since >= self.patience and state.evaluated:
            state.stop(f"{self.monitor} has not improved for {since} evaluations")
