"""Which conditions are valid for which method. No method declares this; it follows from its code.

Each function returns the reason against a condition as words for an error message, or None if the condition is valid.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import SERVER_HOOKS, Algorithm, Plan
from fedkeel.core.flat import Layers
from fedkeel.core.records import Record, TrialSteps, ZeroGrad, down_record, exchanges_of, small_layers, trial_upload
from fedkeel.core.round import Round
from fedkeel.core.steps import Grad
from fedkeel.core.sums import only_plain, sums_asked

LAYERS = small_layers(2)
D = sum(LAYERS.sizes)
TRIALS = 4  # with other gradients each; a field with random signs is never negative in all of them with probability 2**-16


def planned(method: Algorithm) -> Algorithm:
    """The method for the smallest run: one client, one round."""
    return method.plan(Plan(N=1, S=1, K=1.0, T=1, layers=LAYERS))


def why_sums_are_not_enough(method: Algorithm) -> str | None:
    """Why the server needs single uploads. None: sums are enough, so secure aggregation would be valid."""
    method = planned(method)
    for stage in exchanges_of(method):
        if not only_plain(sums_asked(method, stage, LAYERS)):
            return _looks(method, stage)
    return None


def why_not_privacy(method: Algorithm, where: str = "server") -> str | None:
    """Noise on sums protects only what the server learns from sums. Noise on each upload protects everything."""
    if where == "server":
        return why_sums_are_not_enough(method)
    whole = [name for up in _uploads(method) for name, z in up._asdict().items() if not z.is_floating_point()]
    return f"its clients send whole numbers ({', '.join(whole)}), to which noise cannot be added" if whole else None


def why_not_aggregation(method: Algorithm) -> str | None:
    """A robust mean is of no use if the server also uses single uploads."""
    method = planned(method)
    for stage in exchanges_of(method):
        if method.facts.owns or sums_asked(method, stage, LAYERS) is None:
            return _looks(method, stage)
    return None


def why_not_uplink(method: Algorithm) -> str | None:
    """Only vectors can be compressed."""
    vectors = any(z.shape[-1:] == (D,) for up in _uploads(method) for z in up)
    return None if vectors else "its clients send no vector of the model's size"


def _uploads(method: Algorithm) -> list[Record]:
    """What a client sends in a round: its answer to the survey, if there is one, and the result of its local steps."""
    method = planned(method)
    stages = [stage for stage in exchanges_of(method) if stage != "warmup"]
    return [trial_upload(method, stage, LAYERS, torch.float32) for stage in stages]


def why_not_attack(method: Algorithm) -> str | None:
    """Attackers change vectors."""
    return why_not_uplink(method)


def why_not_absence(method: Algorithm) -> str | None:
    """Some methods are made for rounds with everybody. Their option allow_partial lifts this."""
    try:
        method.plan(Plan(N=2, S=1, K=1.0, T=1, fewest=0, layers=LAYERS))
    except ValueError:
        return "it is made for rounds with all clients; allow_partial=True lifts this"
    return None


def why_not_buffer(method: Algorithm, layers: Layers) -> str | None:
    """Asynchronous runs mix uploads that belong to different models. method: planned for a model with these layers."""
    if hasattr(method, "survey"):
        return "its rounds have two exchanges with the same clients"
    if method.facts.owns or sums_asked(method, "client", layers) is None:
        return "its server looks at single uploads, and a buffer holds uploads of different rounds"
    return None


def _looks(method: Algorithm, stage: str) -> str:
    up = trial_upload(method, stage, LAYERS, torch.float32)
    return f"its server step looks at each client's {' and '.join(up._fields)}, not just at their weighted sums"


# Fields that are never negative --------------------------------------------------------------------------------------


class RandomGrad(ZeroGrad):
    """A mini-batch with a random gradient."""

    steps: RandomSteps

    def __call__(self, w: Tensor) -> Tensor:
        return self.steps.drawn_like(w)

    def plus(self, own: Any, w: Tensor, *frozen: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        return self.steps.drawn_like(w)

    def loss(self, w: Tensor) -> Tensor:
        return w.new_ones(1)


class RandomSteps(TrialSteps):
    """One local step with a random gradient."""

    rng: torch.Generator

    def drawn_like(self, w: Tensor) -> Tensor:
        return torch.randn(w.shape, generator=self.rng, dtype=w.dtype)

    def __iter__(self) -> Iterator[Grad]:
        yield RandomGrad(self)

    def full_grad(self, w: Tensor) -> Tensor:
        return self.drawn_like(w)


def never_negative(method: Algorithm, stage: str) -> frozenset[str]:
    """The fields of an upload that are never negative, such as second moments. Noise must not make them so."""
    method = planned(method)
    signed: set[str] = set()
    seen: set[str] = set()
    try:
        for number in range(TRIALS):
            up = _random_upload(method, stage, number)
            seen |= set(up._fields)
            signed |= {name for name, z in up._asdict().items() if bool((z < 0).any()) or not bool((z > 0).any())}
    except Exception:  # a method of the user's that cannot do this with so small a model
        return frozenset()
    return frozenset(seen - signed)


def never_negative_below(method: Algorithm) -> frozenset[str]:
    """The fields of what the server sends that are never negative."""
    signed: set[str] = set()
    seen: set[str] = set()
    try:
        for number in range(TRIALS):
            sent = down_record(planned(method), _after_random_uploads(planned(method), number))._asdict()
            seen |= set(sent)
            signed |= {name for name, z in sent.items() if bool((z < 0).any()) or not bool((z > 0).any())}
    except Exception:  # a method of the user's that cannot do this with so small a model
        return frozenset()
    return frozenset(seen - signed)


def _after_random_uploads(method: Algorithm, number: int) -> Any:
    """The server's record after each of its exchanges, with a random upload of one client."""
    server, _ = method.init(torch.zeros(D))
    one = torch.ones(1, dtype=torch.float64)
    roles = [name for name in method.draw(np.random.default_rng(0), [0]) if name != "K"]
    drawn = SimpleNamespace(**dict.fromkeys(roles, one))
    for stage in ("warmup", "survey", "client"):
        if stage in exchanges_of(method):
            up = _random_upload(method, stage, number)
            many = type(up)(*(z.reshape(1, *z.shape[-1:]) if z.dim() else z[None] for z in up))
            r = Round(-1 if stage == "warmup" else 0, 1, torch.zeros(1, dtype=torch.int64), one, one, one, drawn, True)
            server = getattr(method, SERVER_HOOKS[stage])(server, many, r)
    return server


def _random_upload(method: Algorithm, stage: str, number: int) -> Record:
    server, mem = method.init(torch.zeros(D))
    roles = method.draw(np.random.default_rng(0), [0])
    steps = RandomSteps(LAYERS, list(roles), torch.float32)
    steps.rng = torch.Generator().manual_seed(number)
    return getattr(method, stage)(down_record(method, server), mem, steps)[0]


CONDITIONS: dict[str, Callable[[Algorithm], str | None]] = {
    "privacy": why_not_privacy,
    "local privacy": functools.partial(why_not_privacy, where="client"),
    "aggregation": why_not_aggregation,
    "uplink": why_not_uplink,
    "attack": why_not_attack,
    "absence": why_not_absence,
    "buffer": lambda method: why_not_buffer(planned(method), LAYERS),
}
