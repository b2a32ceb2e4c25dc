"""What a federated method is: a frozen dataclass of hyper-parameters with `init`, `client` and `server`. And the registry,
which knows every method by its name.

State lives in records: NamedTuples of tensors that each method declares on top of its file. There is a record of the server,
one that every client keeps between its rounds (None if it keeps nothing), and the upload. The engine counts what travels
from these records, so a method never states its cost.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import logging
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from fedkeel.core.hyperparameters import check_value, python_number
from fedkeel.errors import nearest
from fedkeel.user_code import find_object

if TYPE_CHECKING:  # so that the list of methods is known without torch, for `fedkeel --help`
    import numpy as np
    from torch import Tensor

    from fedkeel.core.flat import Layers
    from fedkeel.core.records import Record
    from fedkeel.core.round import Round
    from fedkeel.core.steps import Steps

# The exchanges of a run, in their order: the hook of the clients, and the hook of the server for their uploads.
SERVER_HOOKS = {"warmup": "warmup_server", "survey": "survey_server", "client": "server"}
HOOKS = {"warms_up": "warmup", "surveys": "survey"}  # which hook announces an optional exchange
# What a method may be good for: the groups of `fedkeel algorithms`, in their order there.
PROBLEMS = {
    "drift": "clients differ, so their local steps lead away from the global minimiser",
    "adaptivity": "one step size does not suit all coordinates, layers or clients, or nobody can tune it",
    "sharpness": "the model fits the training data and generalises badly, so flat minima are wanted",
    "absence": "few clients take part in a round, or some take part more often than others",
    "communication": "rounds are expensive, so each of them should achieve more",
    "memory": "a round forgets what earlier rounds and absent clients have learnt",
}
FORMER_HOOKS = {"begin": "warmup_server", "prepare": "survey_server"}  # their names up to 0.1.0


@dataclass(frozen=True)
class Plan:
    """The facts of a run that a method may use before it starts, for example to set its step sizes."""

    N: int  # clients
    S: int  # participants of a round; the largest number if rounds differ
    K: float  # local steps of a client; the mean if clients differ
    T: int  # rounds
    fewest: int | None = None  # participants of the smallest round; None: S
    layers: Layers | None = None  # names, sizes and shapes of the model's parameters; None: there is no model yet


class Algorithm(ABC):
    """Base of all methods. `init`, `client` and `server` are required; the hooks below them are optional."""

    # Filled in by the decorator `algorithm`.
    name: ClassVar[str]
    facts: ClassVar[Facts]

    @abstractmethod
    def init(self, x: Tensor) -> tuple[Record, Record | None]:
        """x [d] -> the first server record, and the record of a client before its first round."""

    @abstractmethod
    def client(self, down: Any, mem: Any, steps: Steps) -> tuple[Record, Record | None]:
        """The local work of one client, on [..., d] -> (upload, new client record). It must not change down and mem."""

    @abstractmethod
    def server(self, s: Any, up: Any, r: Round) -> Record:
        """Server record s, uploads stacked to [S, ...] and the facts of the round -> new server record."""

    def plan(self, p: Plan) -> Self:
        """Fill in the fields that depend on the run; called once, before anything else."""
        return self

    def warms_up(self) -> bool:
        """Does this method visit all clients once, before round 0?

        Then it defines `warmup(down, mem, steps)`, like `client`, with batches of its own, and `warmup_server(s, up, r)`,
        like `server`. The latter is called for one part of the clients after the other, so it may only add up `r.share`.
        """
        return False

    def surveys(self, t: int = 0) -> bool:
        """Does round t begin with an exchange of its own, before the local steps?

        Then it defines `survey(down, mem, steps)`, like `client`, and `survey_server(s, up, r)`, like `server`. What the
        latter puts into the sent fields reaches the clients with the local steps (see `mime`). A client that fails in the
        local steps keeps the record that its survey made.
        """
        return False

    def draw(self, rng: np.random.Generator, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Random roles of the clients of a round, name -> [S]: `steps.drawn` for clients, `r.drawn` for the server.

        A role named K replaces the number of local steps.
        """
        return {}

    def at(self, t: int, lr_decay: float = 1.0) -> Self:
        """The method as it is in round t. Only the local learning rate `lr` decays."""
        if lr_decay == 1.0 or t <= 0:
            return self
        return dataclasses.replace(self, lr=self.lr * lr_decay**t)  # type: ignore[type-var, attr-defined]

    def first_lr(self) -> float | None:
        """Where a search of the local step size begins, if `lr` is not given. None: nothing is searched."""
        return getattr(self, "lr", None)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = python_number(getattr(self, field.name))
            check_value(self.name, field, value)
            object.__setattr__(self, field.name, value)


@dataclass(frozen=True)
class Facts:
    """What the decorator says about a method; `fedkeel algorithms` shows it."""

    paper: str  # source, with the number of the listing
    sends: tuple[str, ...]  # server fields that every participant receives
    exact: bool  # with exact gradients and K > 1, is the global minimiser a fixed point although clients differ?
    solves: tuple[str, ...]  # words of PROBLEMS, the most important first; empty if the method does not say
    family: str  # SGD, server-adaptive, client-adaptive, tracking, momentum, memory
    local: str  # the client's step, in words
    correction: str  # what is added against drift
    step: str  # the server's step
    gradients: int  # gradients per local step
    tracked: tuple[str, ...]  # upload fields that only clients send whose drawn role `tracks` is 1
    uniform: bool  # only defined for uniform weights
    owns: tuple[str, ...]  # server fields too large to copy, which `server` overwrites in place
    private: bool  # do the parameters and statistics of batch normalisation stay with each client?
    same: tuple[str, ...]  # "my settings -> method its settings": with these, two methods are one; a test compares them
    needs: str  # what the model must show of its inside: "features", "blocks" or "" (core/features.py)


# The registry: every method by its name ----------------------------------------------------------------------------

log = logging.getLogger("fedkeel")
registered: dict[str, type[Algorithm]] = {}
A = TypeVar("A", bound=type[Algorithm])


def algorithm(
    name: str,
    *,
    paper: str,
    sends: str,
    exact: bool,
    family: str,
    solves: str = "",
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
        _check_received(name, cls, sends.split())
        _check_problems(name, solves.split())
        _check_free(name, cls)
        cls.name = name
        cls.facts = Facts(
            paper=paper,
            sends=tuple(sends.split()),
            exact=exact,
            solves=tuple(solves.split()),
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
    """A method that announces an optional exchange must define both hooks of it, under their present names."""
    for former, hook in FORMER_HOOKS.items():
        if hasattr(cls, former) and not hasattr(cls, hook) and hasattr(cls, hook.removesuffix("_server")):
            raise TypeError(f"{name}: it defines {former}, which is now called {hook}; rename it")
    for says, stage in HOOKS.items():
        if getattr(cls, says) is not getattr(Algorithm, says):
            missing = [hook for hook in (stage, SERVER_HOOKS[stage]) if not hasattr(cls, hook)]
            if missing:
                raise TypeError(f"{name}: it defines {says}, so it must define {' and '.join(missing)}, too")


def received(cls: type[Algorithm], hook: str) -> type | None:
    """The record type with which a method annotates what its clients receive; None if it does not annotate it."""
    written = inspect.get_annotations(getattr(cls, hook)).get("down")
    if isinstance(written, str):  # as with `from __future__ import annotations`
        try:
            written = eval(written, getattr(cls, hook).__globals__)
        except NameError:  # a type that was declared inside a function
            return None
    return written if hasattr(written, "_fields") else None


def _check_received(name: str, cls: type[Algorithm], sends: Sequence[str]) -> None:
    """The type of `down` has exactly the fields that are sent. A type checker then finds the use of any other field."""
    for hook in SERVER_HOOKS:
        kind = received(cls, hook) if hasattr(cls, hook) else None
        if kind is not None and set(kind._fields) != set(sends):  # type: ignore[attr-defined]
            has = " ".join(kind._fields)  # type: ignore[attr-defined]
            raise TypeError(
                f"{name}: {hook} takes down: {kind.__name__} with the fields {has!r}, but sends = {' '.join(sends)!r}; "
                f"declare a NamedTuple Down with just the fields that are sent"
            )


def _check_problems(name: str, words: Sequence[str]) -> None:
    for word in words:
        if word not in PROBLEMS:
            raise ValueError(f"{name}: solves = {word!r} is not allowed; it must be one or more of {', '.join(PROBLEMS)}")


def _check_free(name: str, cls: type[Algorithm]) -> None:
    """Refuses a name that another class has. The same class may come again, from a reloaded module or a notebook cell."""
    import_file(name)  # otherwise a built-in method that nobody has used yet could be replaced
    taken = registered.get(name, cls)
    if (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"algorithm: the name {name!r} is taken by {taken.__module__}.{taken.__qualname__}; choose another")


def algorithms() -> list[str]:
    """The names of all registered methods, in alphabetical order."""
    _import_all()
    return sorted(registered)


def defaults(kind: type[Algorithm]) -> dict[str, Any]:
    """The default of every hyper-parameter that has one. Runs that were stored before it existed are read with it."""
    return {one.name: one.default for one in dataclasses.fields(kind) if one.default is not dataclasses.MISSING}  # type: ignore[arg-type]


def spelled(name: str) -> str:
    """The name as it is registered: names are not case-sensitive, and FedAvg_M is read as fedavg-m."""
    if name in registered or ":" in name:
        return name
    plain = name.lower().replace("_", "-")
    if plain.replace("-", "_") in _files():
        return plain
    return next((known for known in registered if known.lower().replace("_", "-") == plain), name)


def _from_package(name: str) -> type[Algorithm]:
    """The method `package.module:Class`."""
    kind = find_object("algorithm", name, "package.module:Class")
    if not isinstance(kind, type) or not issubclass(kind, Algorithm):
        raise ValueError(f"algorithm: {name} is no method; it must be a subclass of fedkeel.Algorithm")
    if "facts" not in vars(kind):
        raise ValueError(f"algorithm: {name} has no name; decorate it by @algorithm(...) of fedkeel.core.algorithm")
    return kind


def lookup(name: str) -> type[Algorithm]:
    """The class registered under `name`, or `package.module:Class`."""
    if not isinstance(name, str):
        raise ValueError(f"algorithm: expected a name, not {type(name).__name__}")
    if ":" in name:
        return _from_package(name)
    name = spelled(name)
    import_file(name)
    if name not in registered:
        _import_all()
        name = spelled(name)
    if name not in registered:
        raise ValueError(f"algorithm: unknown name {name!r}{nearest(name, registered)}")
    return registered[name]


def make(name: str, **hyperparameters: Any) -> Algorithm:
    """The method `name` with its defaults, changed by the keywords."""
    cls = lookup(name)
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in hyperparameters:
        if key not in known:
            raise ValueError(f"{name}: unknown hyper-parameter {key!r}{nearest(key, known)}")
    return cls(**hyperparameters)


@functools.cache
def _files() -> list[str]:
    package = importlib.import_module("fedkeel.methods")
    return [module.name for module in pkgutil.iter_modules(package.__path__)]


def import_file(name: str) -> None:
    """Imports the file of one built-in method, which is faster than importing all."""
    file = name.replace("-", "_")
    if name not in registered and file in _files():
        importlib.import_module(f"fedkeel.methods.{file}")


def _import_all() -> None:
    for name in _files():
        importlib.import_module(f"fedkeel.methods.{name}")
    _import_packages()


@functools.cache
def _import_packages() -> None:
    """Imports the methods that installed packages announce by the entry point `fedkeel.methods`."""
    for entry in importlib.metadata.entry_points(group="fedkeel.methods"):
        try:
            entry.load()
        except Exception as error:  # a package that is broken must not take the other methods with it
            log.warning("algorithm: the method %s of %s cannot be imported: %s", entry.name, entry.value, error)


if not TYPE_CHECKING:  # names of version 0.1.0; a type checker sees only the names above

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):  # Python looks for __path__ at every import
            raise AttributeError(name)
        from fedkeel.old_paths import moved

        return moved(__name__, name)
