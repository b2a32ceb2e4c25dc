"""The conditions of a run: its channel, from its settings, and which settings and methods do not go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedkeel.channel import validity
from fedkeel.channel.accounting import NONE, POISSON, REPLACE, Accountant, Sampling
from fedkeel.channel.channel import Channel, Conditions
from fedkeel.channel.link import check_downlink, check_order
from fedkeel.channel.words import MODULES, conditions
from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import FlatModel
from fedkeel.engine.participation import Bernoulli, Schedule, Uniform, Weighted

if TYPE_CHECKING:
    from fedkeel.engine.settings import Settings


def check_conditions(settings: Settings, algo: Algorithm, remote: bool) -> None:
    """Refuses conditions that are not valid for the method, or not together. remote: the clients are on other machines."""
    if remote and settings.attack is not None:
        raise ValueError(f"attack = {settings.attack!r} is not allowed in a deployed run; it is for simulations")
    privacy: Any = next(iter(conditions("privacy", settings.privacy)), None)
    rule: Any = next(iter(conditions("aggregation", settings.aggregation)))
    check_order(conditions("uplink", settings.uplink))
    check_downlink(conditions("downlink", settings.downlink))
    reasons: dict[str, str | None] = {}
    if privacy is not None:
        Accountant(Sampling(NONE, 1), 0.0, privacy.delta)  # raises if the package is missing
        reasons["privacy"] = validity.why_not_privacy(algo, privacy.where)
        if privacy.where == "server" and (settings.weights == "samples") != (privacy.cap is not None):
            reasons["privacy"] = (
                "cap is for weights = 'samples'"
                if privacy.cap is not None
                else "weights = 'samples' lets one client move the mean far; use weights='uniform', or give cap, the "
                "largest number of samples that counts"
            )
        if privacy.where == "server" and not rule.neutral:
            reasons["privacy"] = f"aggregation = {settings.aggregation!r} is no sum, and noise is for sums"
        if privacy.where == "client" and settings.uplink is not None:
            reasons["privacy"] = "with where = 'client', noise comes after the uplink and would undo its compression"
    if not rule.neutral:
        reasons["aggregation"] = validity.why_not_aggregation(algo)
        if settings.weights != "uniform":
            reasons["aggregation"] = "weights = 'samples' lets a bad client claim many samples; use weights='uniform'"
    corrected = isinstance(settings.presence, Weighted) and settings.presence.correct
    for name in reasons:
        if corrected and reasons[name] is None and not (privacy is not None and privacy.where == "client"):
            reasons[name] = f"participation = {settings.participation!r} gives clients unequal weights"
    if settings.buffer is not None:
        for name in reasons:
            reasons[name] = f"buffer = {settings.buffer} gives clients unequal weights, and they come at any time"
    if privacy is not None and (settings.deadline is not None or settings.overselect != 1):
        reasons["privacy"] = "deadline and overselect leave clients out, which the accounting does not know"
    if settings.uplink is not None:
        reasons["uplink"] = validity.why_not_uplink(algo)
    if settings.attack is not None:
        reasons["attack"] = validity.why_not_attack(algo)
    for name, why in reasons.items():
        if why is not None:
            raise ValueError(f"{name} = {getattr(settings, name)!r} is not allowed with {algo.name}: {why}")


def sampling_of(settings: Settings, N: int, where: str) -> Sampling:
    """How the clients of a round are chosen, for the accounting of privacy."""
    S, presence = settings.cohort_size(N), settings.presence
    if where == "client" or isinstance(settings.cohort, Sequence):
        return Sampling(NONE, N)
    if isinstance(presence, Bernoulli) and (q := presence.p or S / N) < 1:
        return Sampling(POISSON, N, q=q)
    return Sampling(REPLACE, N, S) if isinstance(presence, Uniform) and S < N else Sampling(NONE, N)


def open_channel(settings: Settings, algo: Algorithm, model: FlatModel, schedule: Schedule, remote: bool) -> Channel | None:
    """The channel of a run; None if nothing is between clients and server. remote: the clients are on other machines."""
    texts = {name: getattr(settings, name) for name in MODULES}
    what = Conditions.read(texts, algo, model.layers)
    if what is None:
        return None
    if what.privacy is not None and model.has_buffers:
        raise ValueError(
            f"privacy = {settings.privacy!r} is not allowed with a model that has normalisation statistics: clients send "
            "them beside their uploads; use a model without them (group normalisation)"
        )
    sampling = sampling_of(settings, schedule.N, what.privacy.where if what.privacy else "server")

    def cohorts() -> list[list[int]]:
        return [schedule.participants(t) for t in range(settings.rounds)]

    channel = Channel(what, algo, model.layers, model.dtype, settings.seed, sampling, cohorts, schedule.fed.sizes, remote)
    if channel.spent_after(0, schedule.participants(0)):
        assert what.privacy is not None
        raise ValueError(f"privacy: epsilon = {what.privacy.epsilon!r} is spent before the first round; take more noise")
    return channel
