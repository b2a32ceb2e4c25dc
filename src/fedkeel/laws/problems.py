"""Small problems on which methods are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.data.federation import Federation
from fedkeel.data.load import load


def half_square(output: Tensor, target: Tensor) -> Tensor:
    """With a linear model this makes every client's loss a quadratic."""
    return 0.5 * (output - target).square().mean()


def linear_clients(sizes: Sequence[int], inputs: int, seed: int = 0, unlike: float = 1.0, shift: bool = True) -> Federation:
    """Clients with different linear-regression data: each has its own inputs, true weights and noise."""
    rng = np.random.default_rng(seed)
    clients = []
    for size in sizes:
        scale = rng.uniform(0.5, 1.5, size=inputs)
        x = rng.normal(size=(size, inputs)) * scale + (rng.normal(size=inputs) * 0.3 if shift else 0)
        truth = rng.normal(size=(inputs, 1)) * unlike
        clients.append((x, x @ truth + 0.1 * rng.normal(size=(size, 1))))
    return Federation.from_arrays(clients)


def linear_model(inputs: int, bias: bool = True, x0: Sequence[float] | None = None) -> nn.Module:
    """A linear model in float64. Its initial weights are fixed, or those that you give."""
    model = nn.Linear(inputs, 1, bias=bias).double()
    d = inputs + bias
    values = torch.linspace(-0.5, 0.7, d, dtype=torch.float64) if x0 is None else torch.as_tensor(x0).double()
    with torch.no_grad():
        model.weight.copy_(values[:inputs].view(1, -1))
        if bias:
            model.bias.copy_(values[inputs:])
    return model


def quadratic(fed: Federation, client: int, bias: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A, b of the client's loss 1/2 w'Aw - b'w + const."""
    x, y = fed[client].x.numpy(), fed[client].y.numpy()[:, 0]
    if bias:
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return x.T @ x / len(x), x.T @ y / len(x)


def minimiser(fed: Federation, bias: bool = False) -> np.ndarray:
    """x* of the mean of the clients' losses."""
    parts = [quadratic(fed, client, bias) for client in range(len(fed))]
    return np.linalg.solve(sum(a for a, _ in parts), sum(b for _, b in parts))


def digits_fed(clients: int = 20, concentration: float = 0.3) -> Federation:
    return load("digits").split("dirichlet_per_class", clients=clients, concentration=concentration, seed=0)


def small_net(hidden: int = 16) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))


def copy_record(record: Any) -> Any:
    return None if record is None else type(record)(*(z.clone() for z in record))


def same_record(a: Any, b: Any, without: Sequence[str] = ()) -> bool:
    if a is None or b is None:
        return a is b
    return all(torch.equal(getattr(a, f), getattr(b, f)) for f in a._fields if f not in without)
