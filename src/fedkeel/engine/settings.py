"""The settings of training. Each is declared once, here; `runs.config` adds those of runs whose parts have names.

The declaration of a setting says its type, default, range, help and example. The checks, the options of the command line,
the keys of study files and the defaults of `train` all come from it. Importing this module loads neither torch nor numpy,
so that `fedkeel --help` is fast.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedkeel.core.hyperparameters import allowed, fits, is_number, python_number
from fedkeel.engine.fleet import Fleet
from fedkeel.engine.participation import Participation, Schedule, as_text, from_text
from fedkeel.engine.schedule import ALLOWED, check_schedule
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
CHANNEL = ("privacy", "uplink", "downlink", "aggregation", "attack")  # settings of what is between clients and server
TIME = ("clock", "deadline", "overselect", "buffer", "concurrency", "staleness")  # settings of virtual time
IN_PROCESS = ("sequential", "vectorized", "compiled")  # nothing can stop a client of these engines


def setting(
    default: Any,
    help: str,
    *,
    group: str,
    example: Any,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
    choices: Sequence[str] = (),
    also: Sequence[Any] = (),
    filled: Any = None,
    allowed: str = "",
) -> Any:
    """Declares a setting.

    group: its heading in the help.  example: a value that the help shows.
    least, above, below, most: the allowed range, as in `hp`.  choices: the allowed words.  also: further allowed values.
    filled: for a setting that is None by default: the value that takes the place of None where one is needed.
    allowed: what is allowed in words, if the range and the type do not say it.
    """
    about = {"doc": help, "group": group, "example": example, "also": tuple(also), "filled": filled, "allowed": allowed}
    about |= {"least": least, "above": above, "below": below, "most": most, "choices": tuple(choices)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=about)
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is trained. Every value is checked when the object is made."""

    rounds: int = setting(100, "Rounds of communication.", group="Training", example=200, least=1)
    cohort: int | float | Sequence[Sequence[int]] | Callable[[int], Any] = setting(  # noqa: RUF009
        10,
        "Clients of a round: a count (10) or a fraction (0.1).",
        group="Training",
        example=0.1,
        allowed="a count (10) or a fraction (0.1)",
    )
    participation: str | None = setting(
        None,
        "Who is there: uniform (default), bernoulli, weighted, cyclic, markov, by_label or trace, with options such as "
        "markov:on=0.2,off=0.1; docs/participation.md lists them. `cohort` then is the largest round.",
        group="Conditions",
        example="markov:on=0.2,off=0.1",
        allowed="a text such as 'markov:on=0.2,off=0.1'",
    )
    clock: str | None = setting(
        None,
        "Speeds of the clients, for a clock of virtual seconds: phones, hospitals, datacentres or a file NAME.toml "
        "(docs/participation.md).",
        group="Conditions",
        example="phones",
        allowed="a profile, a file NAME.toml, or fedkeel.Fleet(...)",
    )
    deadline: float | None = setting(
        None,
        "Virtual seconds after which a round goes on without the clients that are late (needs clock).",
        group="Conditions",
        example=60,
        above=0,
    )
    overselect: float = setting(
        1.0,
        "Selects this many times the cohort; the round ends when a cohort has answered (needs clock).",
        group="Conditions",
        example=1.3,
        least=1,
    )
    buffer: int | None = setting(
        None,
        "Asynchronous: the server makes a step after this number of uploads. A round then is such a step.",
        group="Conditions",
        example=10,
        least=1,
    )
    concurrency: int | None = setting(
        None,
        "Asynchronous: clients that work at the same time (default: the cohort).",
        group="Conditions",
        example=50,
        least=1,
    )
    staleness: str | Callable[[int], float] = setting(  # noqa: RUF009
        "sqrt",
        "Asynchronous: factor of an upload whose model is tau server steps old: sqrt, 1 / sqrt(1 + tau), or constant, 1.",
        group="Conditions",
        example="constant",
        allowed="'sqrt', 'constant', or a function of tau that returns a number >= 0",
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
    privacy: str | None = setting(
        None,
        "Differential privacy of clients: clipped uploads and noise on their sums; see docs/conditions.md.",
        group="Conditions",
        example="gaussian:clip=1,noise=0.8,delta=1e-5",
        allowed="a text such as 'gaussian:clip=1,epsilon=8', or fedkeel.Privacy(...)",
    )
    uplink: str | None = setting(
        None,
        "Compression of uploads with error feedback: topk, randk or lowrank, then quantize or sign.",
        group="Conditions",
        example="topk:0.01+quantize:4",
        allowed="a text such as 'topk:0.01+quantize:4', or a list such as [fedkeel.TopK(0.01)]",
    )
    downlink: str | None = setting(
        None,
        "Compression of what the server sends: quantize, rounded to the nearest.",
        group="Conditions",
        example="quantize:8",
        allowed="a text such as 'quantize:8', or fedkeel.Quantize(8)",
    )
    aggregation: str = setting(
        "mean",
        "How the server averages: mean, median, trimmed, krum, multi-krum, geometric-median, norm or centred-clipping.",
        group="Conditions",
        example="trimmed:0.2",
        allowed="a text such as 'trimmed:0.2', or an object such as fedkeel.TrimmedMean(0.2)",
    )
    attack: str | None = setting(
        None,
        "Clients that send something bad, in simulations: sign-flip, noise, model-replacement, alie, inner-product or "
        "label-flip.",
        group="Conditions",
        example="sign-flip:0.2",
        allowed="a text such as 'sign-flip:0.2', or an object such as fedkeel.SignFlip(0.2)",
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
            object.__setattr__(self, "cohort", _cohorts_of(self.cohort, self.rounds))
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
        return any(getattr(self, name) != Settings.__dataclass_fields__[name].default for name in names)

    @property
    def has_channel(self) -> bool:
        """Is something between clients and server: privacy, compression, a robust mean or an attack?"""
        return self._uses(CHANNEL)

    @property
    def has_virtual_time(self) -> bool:
        """Does the run count virtual seconds, or is it asynchronous?"""
        return self._uses(("clock", "buffer"))

    @property
    def is_plain_cohort(self) -> bool:
        """Has every round the same number of clients, drawn from all of them?"""
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
            self._check_time(remote)
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

    def _check_time(self, remote: bool) -> None:
        """Checks clock, deadline, overselect, buffer, concurrency and staleness against each other."""
        value: Any
        for name, value in (("clock", self.clock), ("buffer", self.buffer)):
            if remote and value is not None:
                raise ValueError(f"{name} = {value!r} is not allowed with clients on other machines; it is for simulations")
        for name, value in (("deadline", self.deadline), ("overselect", None if self.overselect == 1 else self.overselect)):
            if remote and name == "deadline":
                continue  # clients on other machines have a real clock
            if value is not None and self.clock is None:
                raise ValueError(f"{name} = {value} is not allowed without clock; give one, for example clock='phones'")
            if value is not None and self.buffer is not None:
                raise ValueError(f"{name} = {value} is not allowed beside buffer: asynchronous runs wait for nobody")
        for name, value in (("concurrency", self.concurrency), ("staleness", None if self.staleness == "sqrt" else "other")):
            if value is not None and self.buffer is None:
                raise ValueError(f"{name} is not allowed without buffer, the number of uploads of a server step")
        if isinstance(self.cohort, Sequence) or not self.presence.limited:
            for name, used in (("buffer", self.buffer is not None), ("overselect", self.overselect != 1)):
                if used:
                    raise ValueError(
                        f"{name} is not allowed beside a cohort for every round or beside participation = 'bernoulli'; "
                        "give cohort as a count or a fraction"
                    )
        if self.buffer is not None and getattr(self.presence, "correct", False):
            raise ValueError("buffer is not allowed beside participation = 'weighted:correct=true'; leave out correct")

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
            if len(S) < self.rounds:
                raise ValueError(f"cohort: the list has {len(S)} rounds, the run {self.rounds}")
            for t, ids in enumerate(S):
                if isinstance(ids, int | float):
                    if not (1 <= ids <= N if isinstance(ids, int) else 0 < ids <= 1):
                        raise ValueError(f"cohort: round {t} has {ids!r}; it must be from 1 to {N}, or a fraction up to 1.0")
                    continue
                if not len(ids) or len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= N:
                    raise ValueError(f"cohort: round {t} must name different clients from 0 to {N - 1}, not {list(ids)}")
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

    @property
    def presence(self) -> Participation:
        """Who is there, as an object."""
        return from_text(self.participation)

    def conditions(self) -> dict[str, Any]:
        """Settings of time that decide about the trained weights; None for those that are not used."""
        fleet = None if self.clock is None else Fleet(self.clock).identity()
        rule = self.staleness if isinstance(self.staleness, str) else getattr(self.staleness, "__name__", "a function")
        return {
            "clock": fleet,
            "deadline": self.deadline,
            "overselect": None if self.overselect == 1 else self.overselect,
            "buffer": self.buffer,
            "concurrency": self.concurrency,
            "staleness": None if self.buffer is None else rule,
        }

    def freshness(self, tau: int) -> float:
        """The factor of an upload whose model is tau server steps old."""
        if self.staleness == "constant":
            return 1.0
        if self.staleness == "sqrt":
            return 1 / math.sqrt(1 + tau)
        factor = self.staleness(tau)  # type: ignore[operator]
        if not is_number(python_number(factor)) or factor < 0:
            raise ValueError(f"staleness: the function returned {factor!r} for {tau}; it must be a number >= 0")
        return float(factor)

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


def _cohorts_of(function: Callable[[int], Any], rounds: int) -> list[Any]:
    """What the user's function returns for every round: client ids, a count or a fraction."""
    found: list[Any] = []
    for t in range(rounds):
        value = python_number(function(t))
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(value)
            continue
        try:
            found.append([operator.index(i) for i in value])
        except TypeError:
            what = f"{value!r} for round {t}"
            raise ValueError(f"cohort: the function returned {what}; it must be client ids, a count or a fraction") from None
    return found


def _cohort(value: Any) -> Any:
    """A cohort in Python's own numbers and lists, or the user's function."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if callable(value) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    try:
        return [[operator.index(i) for i in ids] for ids in value]
    except TypeError:
        raise refuse(
            "cohort", value, "a count (10), a fraction (0.1), a list of client ids per round, or a function of the round"
        ) from None


def alike(key: str, then: Any, now: Any) -> bool:
    """Do two values of a setting or hyper-parameter mean the same?"""
    return bool(then == now) and (key not in COUNT_OR_SHARE or isinstance(then, float) == isinstance(now, float))


def check_engine(engine: str) -> None:
    if engine == "flower":
        raise ValueError("engine: 'flower': this run was deployed; go on with it by `flwr run` (docs/deploy.md)")
    if engine not in ENGINES:
        raise ValueError(f"engine: unknown name {engine!r}{nearest(engine, ENGINES)}")
