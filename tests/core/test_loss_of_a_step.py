"""`grad.loss(w)` takes the loss from the gradient at w if there is one, and computes it at every other point."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeel.core.flat import FlatModel
from fedkeel.core.many_clients import ManyClients, ManyOracle
from fedkeel.core.steps import Objective, OneClient, Steps, Workspace

NETS = {
    "dense": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "other": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
}


def each(output: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(output, y, reduction="none")


def steps_of(net: str, many: bool) -> tuple[Steps, Tensor, list[int]]:
    """(one step of one client or of two, a point, the number of forward passes so far in a list)."""
    torch.manual_seed(0)
    model, calls = FlatModel(NETS[net]()), [0]
    objective = Objective(model, functional.cross_entropy, weight_decay=0.1, each=each)
    x, y, w = torch.randn(4, 6), torch.tensor([0, 1, 2, 1]), model.vector()

    def counted(function: Any) -> Any:
        def call(*given: Any) -> Any:
            calls[0] += 1
            return function(*given)

        return call

    if not many:
        one = OneClient(objective, 0, [(x, y)], list, Workspace(objective))
        objective.loss = counted(objective.loss)
        return one, w, calls
    oracle = ManyOracle(objective)
    oracle.value = counted(oracle.value)  # type: ignore[method-assign]
    batch = x.expand(2, 4, 6), y.expand(2, 4), torch.full((2, 4), 0.25)
    return ManyClients(objective, 0, oracle, 2, [batch], list), torch.stack([w, w + 0.1]), calls


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("many", [False, True])
@torch.no_grad()
def test_the_loss_is_known_after_a_gradient_at_the_same_point(net: str, many: bool) -> None:
    steps, w, calls = steps_of(net, many)
    (alone,), (grad,) = steps, steps
    expected = alone.loss(w)
    grad(w)
    before = calls[0]
    torch.testing.assert_close(grad.loss(w), expected)
    assert calls[0] == before
    torch.testing.assert_close(grad.loss(w.clone()), expected)  # another tensor: not known
    w.mul_(1.5)  # the same tensor, but another point
    torch.testing.assert_close(grad.loss(w), alone.loss(w))
    assert (grad.loss(w) - expected).abs().min() > 1e-3
    assert calls[0] > before
