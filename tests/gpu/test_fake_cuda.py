"""The hooks of every method on devices that do not exist here: fake tensors that say that they lie on cuda, and `meta`.

Client memory is what the store gives, tensors in host memory, after it has passed the border of core/device.py. Neither
kind of tensor has numbers. So a hook that reads numbers, as the quadratic program of GradMA does, is only followed to that
place; tests/gpu/test_pretended_gpu.py follows it to the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorDeviceMismatchError,
)

import fedkeel as fk
from fedkeel.core import device as border
from fedkeel.core import torch_private
from fedkeel.core.algorithm import SERVER_HOOKS, Plan
from fedkeel.core.flat import Layers
from fedkeel.core.records import TrialSteps, ZeroGrad, down_record, exchanges_of
from fedkeel.core.round import Round, weighted_sum
from fedkeel.core.steps import Grad

LAYERS = Layers([6, 3])
S = 3
every = pytest.mark.parametrize("name", fk.algorithms())
kinds = pytest.mark.parametrize("kind", ["cuda", "meta"])
READS = ("item()", ".numpy()", "meta tensor", "no data", "not linked with support for cuda", "on device meta")


class TwoSteps(TrialSteps):
    def __iter__(self) -> Iterator[Grad]:
        self.K = 2
        yield ZeroGrad(self)
        yield ZeroGrad(self)


def moved(z: Tensor, device: torch.device) -> Tensor:
    """torch without CUDA cannot copy to a fake cuda device, but it can make a tensor there."""
    return z if z.device == device else torch.empty(z.shape, dtype=z.dtype, device=device)


@contextlib.contextmanager
def pretended(kind: str) -> Iterator[torch.device]:
    """A device of this kind, on which tensors can be made."""
    if kind == "meta":
        yield torch.device("meta")
    else:
        torch_private._large_count.cache_clear()  # a fake tensor must not meet the real one, nor stay in the cache
        try:
            with FakeTensorMode():
                yield torch.device("cuda", 0)
        finally:
            torch_private._large_count.cache_clear()


def on_host(record: Any) -> Any:
    """As the store gives it."""
    return None if record is None else type(record)(*(torch.zeros(z.shape, dtype=z.dtype) for z in record))


def hooks(name: str, device: torch.device) -> None:
    """Calls all hooks of a method for a round whose clients have been there before, with a border between them."""
    algo = fk.algorithm(name).plan(Plan(N=S, S=S, K=2, T=10, layers=LAYERS))
    server, initial = algo.init(torch.zeros(sum(LAYERS.sizes), device=device))
    border.check_device("server record", server, device)
    for stage in exchanges_of(algo):
        drawn = algo.draw(np.random.default_rng(0), range(S))
        drawn.pop("K", None)
        mem = border.at_border("client record", on_host(initial), device)
        steps = TwoSteps(LAYERS, list(drawn), torch.float32, device)
        up, new = getattr(algo, stage)(border.at_border("sent record", down_record(algo, server), device), mem, steps)
        border.check_device("upload", up, device)
        border.check_device("new client record", new, device)
        weights = torch.full((S,), 1 / S, dtype=torch.float64)
        roles = SimpleNamespace(**{role: torch.ones(S, dtype=torch.float64) for role in drawn})
        r = border.round_on(Round(0, S, torch.arange(S), 2 * weights, weights, weights, roles), device)
        border.check_round(r, device)
        stack = border.at_border("upload", type(up)(*(torch.zeros(S, *z.shape, dtype=z.dtype) for z in up)), device)
        server = getattr(algo, SERVER_HOOKS[stage])(server, stack, r)
        border.check_device("new server record", server, device)


@every
@kinds
@torch.no_grad()
def test_hooks_stay_on_their_device(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(border, "to_device", moved)
    with pretended(kind) as device:
        try:
            hooks(name, device)
        except (DataDependentOutputException, DynamicOutputShapeException):
            pass
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, FakeTensorDeviceMismatchError) or not any(words in str(error) for words in READS):
                raise


@kinds
@torch.no_grad()
def test_most_methods_are_followed_to_the_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would prove little."""
    monkeypatch.setattr(border, "to_device", moved)
    monkeypatch.setattr(Round, "K_mean", 2.0)  # the mean of numbers that are not there
    stopped = []
    for name in fk.algorithms():
        with pretended(kind) as device:
            try:
                hooks(name, device)
            except Exception:
                stopped.append(name)
    # torch without CUDA cannot cut a piece from a fake cuda tensor, so it stops at more methods.
    assert len(stopped) <= len(fk.algorithms()) // (5 if kind == "cuda" else 10), stopped


# The border -----------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("name", ["scaffold", "padamfed", "moon", "mifa", "feddyn"])
@torch.no_grad()
def test_the_old_fault_is_found_by_the_check(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing moved the record that the store gives, the check of the border would say so."""
    monkeypatch.setattr(border, "to_device", lambda z, device: z)
    with pretended(kind) as device, pytest.raises(ValueError, match=f"client record: the field .* on cpu, .* on {device}"):
        hooks(name, device)


@kinds
@pytest.mark.parametrize("name", ["scaffold", "mifa", "feddyn"])
@torch.no_grad()
def test_the_old_fault_is_found_without_the_check(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And if there were no check either, the arithmetic would fail."""
    monkeypatch.setattr(border, "to_device", lambda z, device: z)
    monkeypatch.setattr(border, "check_device", lambda what, record, device: None)
    monkeypatch.setattr(border, "check_round", lambda r, device: None)
    with pretended(kind) as device, pytest.raises(RuntimeError, match="device"):
        hooks(name, device)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


def test_the_check_names_field_and_devices() -> None:
    pair = Pair(torch.zeros(2), torch.zeros(2, device="meta"))
    border.check_device("upload", None, torch.device("cpu"))
    border.check_device("upload", Pair(pair.a, pair.a), torch.device("cpu"))
    with pytest.raises(ValueError, match="upload: the field b is on meta, but the model is on cpu"):
        border.check_device("upload", pair, torch.device("cpu"))


def test_on_the_cpu_nothing_is_copied() -> None:
    pair, cpu = Pair(torch.zeros(2), torch.ones(3)), torch.device("cpu")
    for same in (border.at_border("upload", pair, cpu), border.to_host(pair), border.record_to(pair, cpu)):
        assert all(a is b for a, b in zip(pair, same, strict=True))


def test_a_weighted_sum_on_a_device_takes_few_operations() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    z = torch.empty(100, 2_000_000, device="meta")
    with Count() as count:
        out = weighted_sum(torch.full((100,), 0.01, dtype=torch.float64), z)
    assert out.shape == (2_000_000,)
    assert out.device.type == "meta"
    assert count.calls < 10
