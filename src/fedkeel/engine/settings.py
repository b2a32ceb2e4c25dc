"""The settings of training. Each is declared once, here; `runs.config` adds those of runs whose parts have names.

The declaration of a setting says its type, default, range, help and example. The checks, the options of the command line,
the keys of study files and the defaults of `train` all come from it. Importing this module loads neither torch nor numpy,
so that `fedkeel --help` is fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedkeel.core.hyperparameters import allowed, fits, python_number
from fedkeel.engine import cohort_lists
from fedkeel.engine.condition_settings import CHANNEL, TIME, Conditions, check_time
from fedkeel.engine.fleet import Fleet
from fedkeel.engine.participation import Schedule, as_text
from fedkeel.engine.schedule import ALLOWED, check_schedule
from fedkeel.engine.setting import setting
from fedkeel.errors import nearest, refuse
from fedkeel.wording import COUNT_OR_SHARE

if TYPE_CHECKING:
    import numpy as np

    from fedkeel.core.algorithm import Algorithm
    from fedkeel.data.federation import Federation

STORES = ("auto", "disk")
ENGINES = ("auto", "sequential", "vectorized", "compiled", "processes", "ray")
METRICS = ("train", "gradient_norm", "consistency", "drift", "tracking", "qp")  # engine/metrics.py measures them
NEED_UPLOADS = {"consistency", "drift", "qp"}  # metrics that look at the uploads one by one
IN_PROCESS = ("sequential", "vectorized", "compiled")  # nothing can stop a client of these engines


@dataclass(frozen=True, kw_only=True)
class Settings(Conditions):
    """How a run is trained. Every value is checked when the object is made."""

    rounds: int = setting(100, "Rounds of communication.", group="Training", example=200, least=1)
    cohort: int | float | Sequence[Sequence[int]] | Callable[[int], Any] = setting(  # noqa: RUF009
        10,
        "Clients of a round: a count (10) or a fraction (0.1).",
        group="Training",
        example=0.1,
        allowed="a count (10) or a fraction (0.1)",
    )
    local_steps: int | None = setting(
        None, "Mini-batch steps of a client in a round.", group="Training", example=20, least=1, filled=10
    )
    local_epochs: int | None = setting(
        None, "Passes over the client's data, instead of local steps.", group="Training", example=1, least=1
    )
    batch_size: int | str | None = setting(
        20,
        "Samples of a step; all: all local data in every step.",
        group="Training",
        example=50,
        also=("all",),
        allowed="a whole number >= 1, or 'all' for all local data",
    )
    weight_decay: float = setting(
        0.0, "L2 coefficient; its term is added to every gradient.", group="Training", example=0.0001, least=0
    )
    lr_decay: float = setting(
        1.0,
        "The local learning rate of round t is lr * lr_decay^t.",
        group="Training",
        example=0.998,
        above=0,
        most=1,
    )
    lr_schedule: str | Callable[[int], float] | None = setting(  # noqa: RUF009
        None,
        "Schedule of the local learning rate: constant, cosine, step:30,60 (a tenth from these rounds on), warmup:5, or "
        "warmup:5+cosine.",
        group="Training",
        example="cosine",
        allowed=ALLOWED,
    )
    clip: float | None = setting(
        None, "Largest norm of a step's direction. By default there is no limit.", group="Training", example=10, above=0
    )
    weights: str = setting(
        "uniform",
        "Weights of the clients in averages: uniform, or samples (by their number of samples).",
        group="Training",
        example="samples",
        choices=("uniform", "samples"),
    )
    seed: int = setting(0, "Seed of initial weights, sampling and batches.", group="Training", example=1, least=0)
    evaluate_every: int = setting(
        1, "Rounds between evaluations; 0: only at the end.", group="Training", example=10, least=0
    )
    validation: float = setting(
        0.0,
        "Part of every client's samples that is held out and never trained on. Searches choose by it.",
        group="Training",
        example=0.1,
        least=0,
        below=1,
    )
    evaluate_on: str = setting(
        "global",
        "What is evaluated: global (test and validation data), or clients (also every client's held-out samples: mean, "
        "worst tenth, spread, and the gain of a few local steps).",
        group="Training",
        example="clients",
        choices=("global", "clients"),
    )
    metrics: Sequence[str] = setting(
        (),
        "More measurements at every evaluation, most of them costly: train (loss and accuracy on all training data), "
        "gradient_norm, consistency and drift of local models, tracking (error of control variates), qp (GradMA).",
        group="Training",
        example=["train", "drift"],
        choices=("accuracy", *METRICS),
        allowed=f"a list of names: {', '.join(METRICS)}",
    )
    engine: str = setting(
        "auto",
        "What runs the clients: auto (measures and chooses), sequential, vectorized, compiled, processes or ray.",
        group="Engine",
        example="processes",
        allowed="one of " + ", ".join(ENGINES),
    )
    device: str = setting(
        "auto",
        "Where the model is computed: auto, cpu or cuda.",
        group="Engine",
        example="cpu",
        allowed="'auto', 'cpu', 'cuda' or another device of torch",
    )
    devices: Sequence[str] = setting(
        (),
        "Several GPUs of this machine, each of which runs clients: cuda:0,cuda:1, or all.",
        group="Engine",
        example=["cuda:0", "cuda:1"],
        allowed="a list of devices, or 'all'",
    )
    memory_format: str | None = setting(
        None,
        "Order of the numbers of images and filters in memory: contiguous, or channels_last, which is faster for "
        "convolutions (default: that of the model's parameters).",
        group="Engine",
        example="channels_last",
        choices=("contiguous", "channels_last"),
    )
    precision: str | None = setting(
        None,
        "bf16: computes forward and backward passes in 16 bits; faster, and rounds to 3 digits (default: the dtype of the "
        "model).",
        group="Engine",
        example="bf16",
        choices=("bf16",),
    )
    workers: int | None = setting(
        None, "Worker processes. By default there is one per core.", group="Engine", example=4, least=1
    )
    timeout: float | None = setting(
        None,
        "Seconds after which a client in a worker process is dropped. By default a round waits for all clients.",
        group="Engine",
        example=60,
        above=0,
    )
    ray_address: str = setting(
        "local",
        "Engine ray: local starts Ray on this machine, auto joins the cluster that runs here, host:port joins another.",
        group="Engine",
        example="10.0.0.1:6379",
    )
    min_clients: int = setting(
        1, "The run stops if fewer clients of a round answer without a fault.", group="Engine", example=5, least=1
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        if callable(self.cohort):
            object.__setattr__(self, "cohort", cohort_lists.from_function(self.cohort, self.rounds))
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError(
                f"local_steps = {self.local_steps} is not allowed beside local_epochs = {self.local_epochs}; "
                "give one of them"
            )
        if self.local_steps is None and self.local_epochs is None:
            object.__setattr__(self, "local_steps", LOCAL_STEPS)

    # Which features does a run use? ---------------------------------------------------------------------------------

    def _uses(self, names: Collection[str]) -> bool:
        """Is one of these settings not at its default?"""
        return any(getattr(self, name) != self.__dataclass_fields__[name].default for name in names)

    @property
    def has_channel(self) -> bool:
        """Is something between clients and server: privacy, compression, a robust mean or an attack?"""
        return self._uses(CHANNEL)

    @property
    def has_virtual_time(self) -> bool:
        """Does the run count virtual seconds, or is it asynchronous?"""
        return self._uses(("clock", "buffer"))

    def conditions(self) -> dict[str, Any]:
        """Settings of time that decide about the trained weights; None for those that are not used."""
        return self.time_identity() if self._uses(TIME) else dict.fromkeys(TIME)

    @property
    def is_plain_cohort(self) -> bool:
        """Does every round draw the same number of clients from all clients?"""
        return self.participation is None and not isinstance(self.cohort, Sequence) and not self.has_virtual_time

    def evaluates(self, t: int) -> bool:
        """Does round t end with an evaluation?"""
        return t == self.rounds - 1 or bool(self.evaluate_every and (t + 1) % self.evaluate_every == 0)

    @property
    def batch(self) -> int | None:
        """Samples of a step; None: all local data."""
        return self.batch_size if isinstance(self.batch_size, int) else None

    def identity(self) -> dict[str, Any]:
        """The settings that decide about the trained weights, as checkpoints have held them since version 0.1.0."""
        names = (
            "cohort",
            "local_steps",
            "local_epochs",
            "batch_size",
            "weight_decay",
            "lr_decay",
            "clip",
            "weights",
            "seed",
            *CHANNEL,
        )
        values = {name: getattr(self, name) for name in names}
        return values | {"local_epochs": self.local_epochs or 1, "batch_size": self.batch}

    # Checks that need more than one value -------------------------------------------------------------------------

    def check_with(self, algo: Algorithm, N: int, remote: bool = False) -> None:
        """The checks that need the method or the number of clients. remote: the clients are on other machines."""
        self.check_clients(N)
        check_engine(self.engine)
        if self._uses(TIME):
            check_time(self, remote)
        if remote and self.participation is not None and self.presence.needs_labels:
            raise ValueError(
                f"participation = {self.participation!r} is not allowed with clients on other machines: the server does not "
                "know their labels"
            )
        if self.timeout is not None and self.engine in IN_PROCESS and not remote:
            raise ValueError(
                f"timeout = {self.timeout} is not allowed with engine = {self.engine!r}; it is for 'processes' and 'ray'"
            )
        if self.devices and (self.engine != "auto" or self.timeout is not None or remote):
            raise ValueError(
                f"devices = {','.join(self.devices)!r} is not allowed with engine = {self.engine!r}, with a timeout or with "
                "clients on other machines; it is an engine itself"
            )
        if self.devices and self.device not in ("auto", self.devices[0]):
            raise ValueError(
                f"device = {self.device!r} is not allowed beside devices = {','.join(self.devices)!r}; leave it out"
            )
        if self.ray_address != "local" and self.engine != "ray":
            raise ValueError(
                f"ray_address = {self.ray_address!r} is not allowed with engine = {self.engine!r}; it is for 'ray'"
            )
        if algo.facts.uniform and self.weights != "uniform":
            raise ValueError(f"weights = {self.weights!r} is not allowed with {algo.name}; it is only defined for 'uniform'")
        if self.evaluate_on == "clients" and not self.validation:
            raise ValueError(
                "evaluate_on = 'clients' is not allowed with validation = 0; it uses the held-out part of every client, "
                "for example validation = 0.2"
            )
        if self.has_channel:
            from fedkeel.engine.conditions import check_conditions

            check_conditions(self, algo, remote)
        if self.metrics:
            from fedkeel.engine.metrics import check_defined

            check_defined(self.metrics, algo)

    def check_clients(self, N: int) -> None:
        """The checks that need the number of clients."""
        S = self.cohort
        if N < 1:
            raise refuse("clients", N, "a whole number >= 1")
        if isinstance(S, int) and not 1 <= S <= N:
            raise refuse("cohort", S, f"from 1 to the number of clients, {N}")
        if isinstance(S, float) and not 0 < S <= 1:
            raise refuse("cohort", S, "> 0 and <= 1 as a fraction (write a count as a whole number)")
        if isinstance(S, Sequence):
            cohort_lists.check(S, self.rounds, N)
        if self.participation is not None and isinstance(S, Sequence):
            raise ValueError(
                f"participation = {self.participation!r} is not allowed beside a list of clients per round; "
                "give cohort as a count or a fraction"
            )
        for name, value in (("buffer", self.buffer), ("concurrency", self.concurrency)):
            if value is not None and value > N:
                raise refuse(name, value, f"at most the number of clients, {N}")
        if self.min_clients > self.largest_cohort(N):
            raise refuse("min_clients", self.min_clients, f"at most the cohort, {self.largest_cohort(N)}")

    def check_decay(self, algo: Algorithm) -> None:
        """Raises if the learning rate of the last round is too small to change anything, or if a schedule is of no use."""
        if self.lr_schedule is not None and algo.at(1, 0.5) == algo:
            raise ValueError(f"lr_schedule is not allowed with {algo.name}; it chooses its step sizes itself")
        try:
            algo.at(self.rounds - 1, self.lr_decay)
        except ValueError as error:
            raise refuse("lr_decay", self.lr_decay, f"closer to 1 for {self.rounds} rounds: {error}") from error

    # What follows from the settings -------------------------------------------------------------------------------

    def largest_cohort(self, N: int) -> int:
        if isinstance(self.cohort, Sequence):
            return max(_cohort_size(one, N) for one in self.cohort[: self.rounds])
        if self.buffer is not None:
            return self.buffer
        return self.cohort_size(N) if self.participation is None or self.presence.limited else N

    def smallest_cohort(self, N: int) -> int:
        if self.deadline is not None:  # all may be late
            return 0
        if isinstance(self.cohort, Sequence):
            return min(_cohort_size(one, N) for one in self.cohort[: self.rounds])
        S = self.cohort_size(N) if self.buffer is None else self.buffer
        return S if self.participation is None else self.presence.fewest(N, S)

    def cohort_size(self, N: int) -> int:
        """The cohort as a count. For lists of clients: the longest."""
        return self.largest_cohort(N) if isinstance(self.cohort, Sequence) else _cohort_size(self.cohort, N)

    def schedule(self, fed: Federation) -> Schedule:
        """The clients of every round."""
        lists = self.cohort if isinstance(self.cohort, Sequence) else None
        return Schedule(self.presence, self.seed, self.cohort_size(len(fed)), fed, lists)

    def steps_of(self, sizes: np.ndarray) -> np.ndarray:
        """The number of local steps of each client (rule R3). sizes: their numbers of samples."""
        import numpy as np

        if self.local_steps is not None:
            return np.full(len(sizes), self.local_steps)
        per_epoch = np.ones(len(sizes), dtype=np.int64) if self.batch is None else -(-sizes // self.batch)
        return (self.local_epochs or 1) * per_epoch


LOCAL_STEPS: int = next(one for one in dataclasses.fields(Settings) if one.name == "local_steps").metadata["filled"]


# One value ------------------------------------------------------------------------------------------------------------


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    """The value of a setting in its own type; an error if the declaration does not allow it."""
    value = python_number(value)
    if field.name == "cohort":
        return _cohort(value)
    if field.name == "clock":
        return value if value is None else (value if isinstance(value, Fleet) else Fleet(value)).name
    if field.name == "staleness":
        if not callable(value) and value not in ("sqrt", "constant"):
            raise refuse("staleness", value, allowed(field))
        return value
    if field.name == "participation":
        return value if value is None else as_text(value)
    if isinstance(field.default, tuple):
        return _names(field, value)
    if field.name == "lr_schedule":
        if value is not None:
            check_schedule(value)
        return value
    if field.name == "device":  # torch itself says whether there is such a device
        if isinstance(value, bool) or not (
            value is None or isinstance(value, str | int) or type(value).__name__ == "device"
        ):
            raise refuse("device", value, allowed(field))
        return value
    if field.name in CHANNEL and value != field.default:
        from fedkeel.channel import words

        return words.as_text(field.name, value) or field.default
    if field.name == "batch_size":
        return _batch_size(field, value)
    if field.default_factory is not dataclasses.MISSING:
        return value
    if not fits(field, value):
        raise refuse(field.name, value, allowed(field))
    bits = 64 if field.name == "seed" else 63  # the largest that torch accepts as a seed and that numpy can count
    if isinstance(value, int) and value >= 2**bits:
        raise refuse(field.name, value, f"a whole number < 2**{bits}")
    return float(value) if isinstance(value, int) and field.type in ("float", "float | None") else value


def _names(field: dataclasses.Field[Any], value: Any) -> list[str]:
    """The value of a setting that is a list of names."""
    if field.name == "devices" and isinstance(value, str):
        value = value.split(",")
    # A text is a collection too, of letters.
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(z, str) and z for z in value):
        raise refuse(field.name, value, allowed(field))
    for name in value:
        if field.metadata["choices"] and name not in field.metadata["choices"]:
            raise ValueError(f"{field.name}: unknown name {name!r}{nearest(name, field.metadata['choices'])}")
    if field.name == "metrics":
        return [name for name in value if name != "accuracy"]  # every evaluation has it
    return list(value)


def _batch_size(field: dataclasses.Field[Any], value: Any) -> int | str:
    if value is None or value in field.metadata["also"]:
        return "all"  # unlike None, it can be written to a file
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
        raise refuse("batch_size", value, allowed(field))
    return value


def _cohort_size(cohort: Any, N: int) -> int:
    """The number of clients of a round: its ids, a count, or a fraction."""
    if isinstance(cohort, Sequence):
        return len(cohort)
    return cohort if isinstance(cohort, int) else max(1, round(cohort * N))


def _cohort(value: Any) -> Any:
    """A cohort in Python's own numbers and lists, or the user's function."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if callable(value) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return cohort_lists.from_lists(value)


def alike(key: str, then: Any, now: Any) -> bool:
    """Do two values of a setting or hyper-parameter mean the same?"""
    return bool(then == now) and (key not in COUNT_OR_SHARE or isinstance(then, float) == isinstance(now, float))


def check_engine(engine: str) -> None:
    if engine == "flower":
        raise ValueError("engine: 'flower': this run was deployed; go on with it by `flwr run` (docs/deploy.md)")
    if engine not in ENGINES:
        raise ValueError(f"engine: unknown name {engine!r}{nearest(engine, ENGINES)}")
