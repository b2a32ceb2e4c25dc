"""What a federated method is: a frozen dataclass of hyper-parameters with `init`, `client` and `server`.

State lives in NamedTuples of tensors ("records") that each method declares on top of its file: the server record, the
record every client keeps between its rounds (None if it keeps nothing), and the upload. What travels is read off these
records, so a method never states its own cost.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from torch import Tensor

from fedkeel.core.hyperparameters import check_value, python_number
from fedkeel.core.records import Record
from fedkeel.core.registry import import_file, registered
from fedkeel.core.steps import Steps

# The exchanges of a run, in their order: what clients do, and what the server does with their answers.
STEPS = {"warmup": "begin", "survey": "prepare", "client": "server"}
HOOKS = {"warms_up": "warmup", "surveys": "survey"}  # who announces the optional ones


@dataclass(frozen=True)
class Plan:
    """The facts of a run that a method's theory may ask for."""

    N: int  # clients
    S: int  # participants of a round, the most where rounds differ
    K: float  # local steps of a client, the mean where they differ
    T: int  # rounds
    fewest: int | None = None  # participants of a round, the fewest where rounds differ; None: S


class Algorithm(ABC):
    """Base of all methods. `init`, `client` and `server` are required; the hooks below them are optional."""

    # Filled in by the decorator `algorithm`.
    name: ClassVar[str]
    facts: ClassVar[Facts]

    @abstractmethod
    def init(self, x: Tensor) -> tuple[Record, Record | None]:
        """x [d] -> the first server record, and the record of a client that was never seen before."""

    @abstractmethod
    def client(self, down: Any, mem: Any, steps: Steps) -> tuple[Record, Record | None]:
        """The local work of one client, on [..., d] -> (upload, new client record); down and mem stay as they are."""

    @abstractmethod
    def server(self, s: Any, up: Any, r: Any) -> Record:
        """Server record, uploads stacked to [S, ...] and the facts of the round -> new server record."""

    def plan(self, p: Plan) -> Self:
        """Fill in the fields that depend on the run; called once, before anything else."""
        return self

    def warms_up(self) -> bool:
        """Does this method visit all clients once, before round 0?

        Then it defines `warmup(down, mem, steps)`, as `client` with batches of their own, and `begin(s, up, r)`, as `server`
        but called for a part of the clients at a time, so it may only add up `r.share`.
        """
        return False

    def surveys(self, t: int = 0) -> bool:
        """Does round t begin with an exchange of its own, before the local steps?

        Then it defines `survey(down, mem, steps)`, as `client`, and `prepare(s, up, r)`, as `server`; what `prepare` puts
        into the sent fields reaches the clients with the local steps (see `mime`). A client that fails in the local steps
        keeps the record that its survey made.
        """
        return False

    def draw(self, rng: np.random.Generator, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Per-client random roles of a round, name -> [S]: `steps.drawn` for clients, `r.drawn` for the server.

        A role named K replaces the number of local steps.
        """
        return {}

    def at(self, t: int, lr_decay: float = 1.0) -> Self:
        """The method as it is in round t: the local learning rate has decayed, nothing else changes."""
        if lr_decay == 1.0 or t <= 0:
            return self
        return dataclasses.replace(self, lr=self.lr * lr_decay**t)  # type: ignore[type-var, attr-defined]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = python_number(getattr(self, field.name))
            check_value(self.name, field, value)
            object.__setattr__(self, field.name, value)


@dataclass(frozen=True)
class Facts:
    """What the registry knows of a method beside its code; shown by `fedkeel algorithms`."""

    paper: str  # source, with the number of the listing
    sends: tuple[str, ...]  # server fields that every participant receives
    exact: bool  # is x* a fixed point with K > 1 on unlike clients (exact gradients)?
    family: str  # SGD, server-adaptive, client-adaptive, tracking, momentum, memory
    local: str  # the client's step, in words
    correction: str  # what is added against drift
    step: str  # the server's step
    gradients: int  # gradients per local step
    tracked: tuple[str, ...]  # upload fields sent only by clients whose drawn role `tracks` is 1
    uniform: bool  # only defined for uniform weights
    owns: tuple[str, ...]  # server fields too large to copy, which `server` overwrites in place
    private: bool  # do the parameters and statistics of batch normalisation stay with each client?
    same: tuple[str, ...]  # "my settings -> method its settings": two methods that are then one; tested for all
    needs: str  # what the model must show of its inside: "features", "blocks" or nothing (core/features.py)


A = TypeVar("A", bound=type[Algorithm])


def algorithm(
    name: str,
    *,
    paper: str,
    sends: str,
    exact: bool,
    family: str,
    local: str = "SGD",
    correction: str = "none",
    step: str = "average",
    gradients: int = 1,
    tracked: str = "",
    uniform: bool = False,
    owns: str = "",
    private: bool = False,
    same: Sequence[str] = (),
    needs: str = "",
) -> Callable[[A], A]:
    """Class decorator that registers a method under `name`; the words are columns of `fedkeel algorithms`."""

    def register(cls: A) -> A:
        _check_hooks(name, cls)
        _check_free(name, cls)
        cls.name = name
        cls.facts = Facts(
            paper=paper,
            sends=tuple(sends.split()),
            exact=exact,
            family=family,
            local=local,
            correction=correction,
            step=step,
            gradients=gradients,
            tracked=tuple(tracked.split()),
            uniform=uniform,
            owns=tuple(owns.split()),
            private=private,
            same=tuple(same),
            needs=needs,
        )
        registered[name] = cls
        return cls

    return register


def _check_hooks(name: str, cls: type[Algorithm]) -> None:
    """A method that says that it has an exchange of its own must also say what happens there."""
    for says, stage in HOOKS.items():
        if getattr(cls, says) is not getattr(Algorithm, says):
            missing = [hook for hook in (stage, STEPS[stage]) if not hasattr(cls, hook)]
            if missing:
                raise TypeError(f"{name}: it defines {says}, so it must define {' and '.join(missing)}, too")


def _check_free(name: str, cls: type[Algorithm]) -> None:
    """A name is given once; the same class may come again, from a module that is reloaded or a cell that is run again."""
    import_file(name)  # or a method of ours that nobody has used yet would be replaced
    taken = registered.get(name, cls)
    if (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"algorithm: the name {name!r} is taken by {taken.__module__}.{taken.__qualname__}; choose another")


# Hyper-parameters -----------------------------------------------------------------------------------------------------


# Records and what they cost -------------------------------------------------------------------------------------------
