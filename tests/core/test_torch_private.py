"""Public replacements of torch's private functions give the same bits. Only Adam's kernel rounds differently."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkeel.core import torch_private as private


def vectors(count: int, size: int = 1003, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=made, dtype=dtype) for _ in range(count)]


def test_backward() -> None:
    torch.manual_seed(0)
    net, unused = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)), nn.Parameter(torch.ones(3))
    parameters = (*net.parameters(), unused)
    for loss in (lambda: net(torch.ones(4, 5)).square().mean(), lambda: net(torch.ones(1, 5))):
        found, expected = (f(loss(), parameters) for f in (private.public_backward, private.private_backward))
        assert found[-1] is expected[-1] is None
        assert all(torch.equal(a, b) for a, b in zip(found[:-1], expected[:-1], strict=True))


@pytest.mark.parametrize("name", ["copy", "add", "subtract"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lists_of_tensors(name: str, dtype: torch.dtype) -> None:
    targets, values = vectors(6, dtype=dtype)[:3], vectors(6, dtype=dtype)[3:]
    alpha = {} if name == "copy" else {"alpha": 0.3}
    found, expected = [z.clone() for z in targets], [z.clone() for z in targets]
    getattr(private, f"public_{name}_each")(found, values, **alpha)
    getattr(private, f"{name}_each")(expected, values, **alpha)
    assert getattr(private, f"{name}_each").__name__.startswith("_foreach")
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(found, targets, strict=True))


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.1])
def test_amsgrad_to_rounding(dtype: torch.dtype, rtol: float, eps: float) -> None:
    w, m, v, v_hat, *gradients = vectors(9, dtype=dtype)
    first = [w, m, v.square(), v_hat.square()]
    found, expected = ([z.clone() for z in first] for _ in range(2))
    for g in gradients:
        for step, (w, m, v, v_hat) in ((private.public_amsgrad, found), (private.private_amsgrad, expected)):
            step(w, g.clone(), m, v, v_hat, lr=0.01, beta1=0.9, beta2=0.99, eps=eps)
    for a, b, z in zip(found, expected, first, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=10 * rtol)
        assert not torch.allclose(a, z)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("rows", [0, 3])
def test_adam_to_rounding(dtype: torch.dtype, rtol: float, rows: int) -> None:
    """Rows of [S, d] have their own counts. The step size may be a tensor."""
    shaped = [z.expand(rows, -1).clone() if rows else z for z in vectors(7, dtype=dtype)]
    w, m, v, *gradients = shaped
    first = [w, m, v.square()]
    count = torch.arange(1, 1 + max(rows, 1), dtype=dtype).view(-1, *[1] * bool(rows))
    found, expected = ([z.clone() for z in first] for _ in range(2))
    for k, g in enumerate(gradients):
        for lr in (0.01, torch.tensor([0.02], dtype=torch.float64)):
            for step, (w, m, v) in ((private.public_adam, found), (private.private_adam, expected)):
                step(w, g, m, v, count + k, lr=lr, beta1=0.9, beta2=0.99, eps=1e-3)
    for a, b, z in zip(found, expected, first, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=10 * rtol)
        assert not torch.allclose(a, z)
    if rows:
        assert not torch.allclose(expected[0][0], expected[0][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("B", [1, 7, 64])
def test_cross_entropy(dtype: torch.dtype, B: int) -> None:
    outputs, y = vectors(1, B * 10, dtype)[0].view(B, 10) * 5, torch.arange(B) % 10
    with torch.no_grad():
        found, expected = (f(outputs, y) for f in (private.public_cross_entropy, private.private_cross_entropy))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert not found[0].requires_grad


def test_relu_backward() -> None:
    error, z = vectors(2)
    output = z.relu()
    assert torch.equal(private.public_relu_backward(error, output, 0), private.relu_backward(error, output, 0))
    assert private.relu_backward is not private.public_relu_backward


@pytest.mark.parametrize("version", [private.public_version, private.private_version])
def test_a_change_in_place_is_noticed(version: Any) -> None:
    z = vectors(1)[0]
    before = version(z)
    z.sum()
    assert version(z) == before
    z[3] += 1
    assert version(z) != before


def test_hooks_are_noticed() -> None:
    listened, free = nn.Linear(2, 2), nn.Linear(2, 2)
    listened.register_forward_hook(lambda *_: None)
    assert (private.has_hooks(listened), private.has_hooks(free)) == (True, False)


@pytest.mark.parametrize("kind", ["BATCH_NORMS", "NORMS", "DROPOUTS", "CONVOLUTIONS"])
def test_layers(kind: str) -> None:
    known = [z for z in vars(nn).values() if isinstance(z, type) and issubclass(z, getattr(private, kind))]
    assert set(known) == set(getattr(private, f"PUBLIC_{kind}"))


WITHOUT = """
import torch
gone = [(torch.autograd.graph, "_engine_run_backward"), (torch, "_fused_adam_"), (torch, "_foreach_copy_"),
        (torch, "_foreach_add_"), (torch, "_foreach_sub_")]
kept = {name: getattr(module, name) for module, name in gone}
for module, name in gone:
    delattr(module, name)
from fedkeel.core import torch_private as private
assert private.backward is private.public_backward
assert private.amsgrad is private.public_amsgrad
assert private.adam is private.public_adam
assert private.copy_each is private.public_copy_each
assert private.add_each is private.public_add_each
assert private.subtract_each is private.public_subtract_each
torch.autograd.graph._engine_run_backward = kept["_engine_run_backward"]  # autograd itself needs it
"""

TRAIN = """
import fedkeel as fk
from torch import nn
fed = fk.load("digits").split("iid", clients=4)
net = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
for name in ("fedavg", "local-adam", "mime"):
    run = fk.train(net, fed, name, rounds=2, cohort=2, local_steps=2, batch_size=8, progress=False, engine="sequential")
    print(run.params.double().sum().item())
"""


def sums(script: str) -> list[float]:
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert out.returncode == 0, out.stderr
    return [float(line) for line in out.stdout.splitlines()]


def test_a_torch_without_the_private_names() -> None:
    """The module chooses the replacements by itself, and methods train the same models with them."""
    fedavg, adam, mime = sums(WITHOUT + TRAIN)
    assert (fedavg, pytest.approx(adam, rel=1e-5), mime) == tuple(sums(TRAIN))
