"""Which sums of uploads a server step needs, and a round that offers these sums and nothing else.

Most methods use the uploads of a round only through `r.avg` and `r.share`. Then the engine can add each upload to a running
sum and drop it, and a deployment can use secure aggregation.

No method declares this. It follows from the method's code: the server step runs once on sealed uploads, which can be summed
and nothing else. Before it is summed, an upload may be multiplied by another one of the same client, divided by it, or
squared: these operations treat each client alone, and they give the same bits for one client as for many at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import SERVER_HOOKS, Algorithm
from fedkeel.core.flat import Layers
from fedkeel.core.records import Record, small_layers, trial_upload
from fedkeel.core.round import Round

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"*": torch.mul, "/": torch.div}


class Term(NamedTuple):
    """What is summed: a field of an upload, or two fields of the same client, multiplied or divided."""

    field: str
    operation: str = ""  # "": the field itself
    other: str = ""  # the second field

    def of(self, up: Record) -> Tensor:
        """Its value for one client's upload."""
        value: Tensor = getattr(up, self.field)
        return OPERATIONS[self.operation](value, getattr(up, self.other)) if self.operation else value


class Sum(NamedTuple):
    """A weighted sum of a term over the clients of an exchange."""

    term: Term
    weights: str  # "avg" or "share", as the methods of Round


class NotASum(TypeError, AttributeError):
    """A server step did something with an upload that cannot be done with sums alone."""


class SealedUpload:
    """Takes the place of a field of the stacked uploads. Only a SumsOnlyRound can use it."""

    def __init__(self, term: Term, ndim: int) -> None:
        self._term, self._ndim = term, ndim

    def _with(self, operation: str, other: Any) -> SealedUpload:
        # For other ranks, torch would match the clients of one field with entries of the other.
        if not isinstance(other, SealedUpload) or self._ndim != other._ndim:
            raise NotASum("the server step combines an upload with something else than another upload")
        if self._term.operation or other._term.operation:
            raise NotASum("the server step combines more than two uploads")
        return SealedUpload(Term(self._term.field, operation, other._term.field), self._ndim)

    def __mul__(self, other: Any) -> SealedUpload:
        return self._with("*", other)

    def __truediv__(self, other: Any) -> SealedUpload:
        return self._with("/", other)

    def __pow__(self, power: Any) -> SealedUpload:
        if power != 2:
            raise NotASum("the server step raises an upload to a power other than 2")
        return self._with("*", self)

    def __getattr__(self, name: str) -> NoReturn:
        raise NotASum(f"the server step looks at {name} of an upload")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise NotASum("the server step uses an upload as a tensor")


def sealed(like: Record) -> Record:
    """A record of sealed uploads. like: the upload of one client."""
    return type(like)(*(SealedUpload(Term(name), z.dim()) for name, z in like._asdict().items()))


@dataclass(frozen=True)
class SumsOnlyRound(Round):
    """A round whose `avg` and `share` take sealed uploads only."""

    total: Callable[[Sum], Tensor] = lambda _: torch.zeros(0)  # must return a tensor that the server step may change

    def avg(self, z: Any) -> Tensor:
        return self._total(z, "avg")

    def share(self, z: Any) -> Tensor:
        return self._total(z, "share")

    def _total(self, z: Any, weights: str) -> Tensor:
        if not isinstance(z, SealedUpload):
            raise NotASum("the server step sums something else than an upload")
        return self.total(Sum(z._term, weights))


def sums_asked(method: Algorithm, stage: str, layers: Layers) -> Counter[Sum] | None:
    """How often the server half of this exchange asks for each sum. None: it needs single uploads.

    layers: those of the model for which the method was planned. The trial has as many, all small.

    The first round may differ from the others, and the last exchange of a warm-up from those before it. So all of them are
    tried, and the largest number counts.
    """
    asked: Counter[Sum] = Counter()
    try:
        for t, last in (-1 if stage == "warmup" else 0, False), (-1 if stage == "warmup" else 0, True), (1, True):
            asked |= _asked_in(method, stage, small_layers(len(layers.sizes)), t, last)
    except Exception:  # NotASum, or something that a method of the user's cannot do with so small a model
        return None
    return asked


def _asked_in(method: Algorithm, stage: str, layers: Layers, t: int, last: bool) -> Counter[Sum]:
    like = trial_upload(method, stage, layers, torch.float32)
    asked: Counter[Sum] = Counter()

    def total(wanted: Sum) -> Tensor:
        asked[wanted] += 1
        return wanted.term.of(like).clone()

    server, _ = method.init(torch.zeros(sum(layers.sizes)))
    one = torch.ones(1, dtype=torch.float64)
    roles = [name for name in method.draw(np.random.default_rng(0), [0]) if name != "K"]
    drawn = SimpleNamespace(**dict.fromkeys(roles, one))
    r = SumsOnlyRound(t, 1, torch.zeros(1, dtype=torch.int64), one, one, one, drawn, last, total=total)
    getattr(method, SERVER_HOOKS[stage])(server, sealed(like), r)
    return asked


def only_plain(sums: Counter[Sum] | None) -> bool:
    """Are these sums of fields as they are uploaded, without multiplying or dividing them first?"""
    return sums is not None and not any(wanted.term.operation for wanted in sums)
