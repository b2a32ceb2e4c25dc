"""The settings of conditions: who is there, virtual time, and what is between clients and server. All are off by default."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedkeel.core.hyperparameters import is_number, python_number
from fedkeel.engine.fleet import Fleet
from fedkeel.engine.participation import Participation, from_text
from fedkeel.engine.setting import setting

if TYPE_CHECKING:
    from fedkeel.engine.settings import Settings

CHANNEL = ("privacy", "uplink", "downlink", "aggregation", "attack")  # settings of what is between clients and server
TIME = ("clock", "deadline", "overselect", "buffer", "concurrency", "staleness")  # settings of virtual time


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Every condition that a run can have."""

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

    @property
    def presence(self) -> Participation:
        """Who is there, as an object."""
        return from_text(self.participation)

    def time_identity(self) -> dict[str, Any]:
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


def check_time(settings: Settings, remote: bool) -> None:
    """Checks clock, deadline, overselect, buffer, concurrency and staleness against each other."""
    value: Any
    for name, value in (("clock", settings.clock), ("buffer", settings.buffer)):
        if remote and value is not None:
            raise ValueError(f"{name} = {value!r} is not allowed with clients on other machines; it is for simulations")
    for name, value in (
        ("deadline", settings.deadline),
        ("overselect", None if settings.overselect == 1 else settings.overselect),
    ):
        if remote and name == "deadline":
            continue  # clients on other machines have a real clock
        if value is not None and settings.clock is None:
            raise ValueError(f"{name} = {value} is not allowed without clock; give one, for example clock='phones'")
        if value is not None and settings.buffer is not None:
            raise ValueError(f"{name} = {value} is not allowed beside buffer: asynchronous runs wait for nobody")
    for name, value in (
        ("concurrency", settings.concurrency),
        ("staleness", None if settings.staleness == "sqrt" else "other"),
    ):
        if value is not None and settings.buffer is None:
            raise ValueError(f"{name} is not allowed without buffer, the number of uploads of a server step")
    if isinstance(settings.cohort, Sequence) or not settings.presence.limited:
        for name, used in (("buffer", settings.buffer is not None), ("overselect", settings.overselect != 1)):
            if used:
                raise ValueError(
                    f"{name} is not allowed beside a cohort for every round or beside participation = 'bernoulli'; "
                    "give cohort as a count or a fraction"
                )
    if settings.buffer is not None and getattr(settings.presence, "correct", False):
        raise ValueError("buffer is not allowed beside participation = 'weighted:correct=true'; leave out correct")
