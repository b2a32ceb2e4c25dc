"""Methods that look into the model: MOON and FedMLB against their definitions, written out with whole modules."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedkeel as fk
from fedkeel.engine import seeding
from tests.tasks import digits_fed

K, BATCH, LR, SEED = 3, 8, 0.3, 0


class WithMethods(nn.Module):
    """Shows its features by methods."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh())
        self.last = nn.Linear(12, 10)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward_head(self, z: Tensor) -> Tensor:
        return self.last(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


class WithBlocks(nn.Module):
    """Declares its blocks."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh())
        second = nn.Sequential(nn.Linear(12, 11), nn.Tanh())
        self.blocks = nn.ModuleList([first, second, nn.Linear(11, 10)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def made(cls: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return cls().double()


def batches(fed: fk.Federation, t: int, client: int) -> list[tuple[Tensor, Tensor]]:
    order, sizes = seeding.batch_order(seeding.generator(SEED, seeding.BATCHES, t, client), len(fed[client]), K, BATCH)
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return [(fed[client].x[part].double(), fed[client].y[part]) for part in parts]


def train(model: nn.Module, fed: fk.Federation, algo: Any, rounds: int, **kw: Any) -> fk.Run:
    settings = {"engine": "sequential", "cohort": len(fed), "seed": SEED} | kw
    return fk.train(model, fed, algo, rounds=rounds, local_steps=K, batch_size=BATCH, progress=False, **settings)


def sgd(net: nn.Module, loss: Tensor) -> None:
    grads = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    with torch.no_grad():
        for p, g in zip(net.parameters(), grads, strict=True):
            if g is not None:
                p -= LR * g


def average(nets: list[nn.Module]) -> nn.Module:
    mean = copy.deepcopy(nets[0])
    with torch.no_grad():
        for p, *own in zip(mean.parameters(), *(net.parameters() for net in nets), strict=True):
            p.copy_(torch.stack(own).mean(0))
    return mean


def flat(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def test_moon_is_what_its_paper_says() -> None:
    fed, mu, tau = digits_fed(3), 2.0, 0.5
    world, last = made(WithMethods), {}
    for t in range(3):
        locals_ = []
        for i in range(3):
            net = copy.deepcopy(world)
            for x, y in batches(fed, t, i):
                loss = functional.cross_entropy(net(x), y)
                if i in last:
                    z, near, far = (n.forward_features(x) for n in (net, world, last[i]))
                    scores = torch.stack([torch.cosine_similarity(z, other.detach()) for other in (near, far)], 1) / tau
                    loss = loss + mu * functional.cross_entropy(scores, torch.zeros(len(y), dtype=torch.long))
                sgd(net, loss)
            locals_.append(net)
        last = dict(enumerate(locals_))
        world = average(locals_)
    run = train(made(WithMethods), fed, fk.algorithm("moon", lr=LR, mu=mu, temperature=tau), 3)
    torch.testing.assert_close(run.params, flat(world), rtol=1e-9, atol=1e-11)


def test_fedmlb_is_what_its_paper_says() -> None:
    fed, weights, tau = digits_fed(3), (0.9, 0.7, 1.3), 2.0
    world = made(WithBlocks)
    for t in range(2):
        locals_ = []
        for i in range(3):
            net = copy.deepcopy(world)
            for x, y in batches(fed, t, i):
                main = net(x)
                h1 = net.blocks[0](x)
                h2 = net.blocks[1](h1)
                ends = [world.blocks[2](world.blocks[1](h1)), world.blocks[2](h2)]
                crosses = [functional.cross_entropy(end, y) for end in ends]
                kls = [
                    functional.kl_div(
                        functional.log_softmax(main / tau, 1), functional.softmax(end / tau, 1), reduction="batchmean"
                    )
                    for end in ends
                ]
                sgd(
                    net,
                    weights[0] * functional.cross_entropy(main, y)
                    + weights[1] * sum(crosses) / 2
                    + weights[2] * sum(kls) / 2,
                )
            locals_.append(net)
        world = average(locals_)
    algo = fk.algorithm("fedmlb", lr=LR, lam1=weights[0], lam2=weights[1], lam3=weights[2], temperature=tau)
    torch.testing.assert_close(train(made(WithBlocks), fed, algo, 2).params, flat(world), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "hp", "other", "other_hp"),
    [
        ("moon", {"mu": 0.0}, "fedavg", {}),
        ("moonm", {"mu": 0.0, "beta1": 0.7}, "fedavgm", {"beta1": 0.7}),
        ("moonm", {"mu": 3.0, "beta1": 0.0}, "moon", {"mu": 3.0}),
        ("fedmlb", {"lam2": 0.0, "lam3": 0.0}, "fedavg", {}),
        ("fedmlbm", {"lam2": 0.0, "lam3": 0.0, "beta1": 0.7}, "fedavgm", {"beta1": 0.7}),
        ("fedmlbm", {"beta1": 0.0}, "fedmlb", {}),
    ],
)
def test_identities(name: str, hp: dict[str, Any], other: str, other_hp: dict[str, Any]) -> None:
    fed = digits_fed(5)
    one = train(made(WithBlocks), fed, fk.algorithm(name, lr=LR, **hp), 4, cohort=3)
    two = train(made(WithBlocks), fed, fk.algorithm(other, lr=LR, **other_hp), 4, cohort=3)
    torch.testing.assert_close(one.params, two.params, rtol=1e-9, atol=1e-12)


def test_first_round_of_moon_is_fedavg() -> None:
    fed = digits_fed(4)
    runs = [train(made(WithMethods), fed, fk.algorithm(n, lr=LR), 1, cohort=2) for n in ("moon", "fedavg")]
    torch.testing.assert_close(runs[0].params, runs[1].params)


@pytest.mark.parametrize("model", [WithMethods, WithBlocks])
def test_engines_agree(model: type[nn.Module]) -> None:
    fed = digits_fed(4)
    runs = [
        train(made(model), fed, fk.algorithm("moon", lr=LR), 3, engine=e) for e in ("sequential", "vectorized", "processes")
    ]
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=1e-9, atol=1e-11)
    assert torch.equal(runs[0].params, runs[2].params)


def test_a_model_that_hides_its_inside_is_refused() -> None:
    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.only(x.flatten(1))

    with pytest.raises(ValueError, match=r"moon needs the features.*forward_features"):
        train(Closed(), digits_fed(3), "moon", 1)
    with pytest.raises(ValueError, match=r"fedmlb needs the blocks.*blocks"):
        train(made(WithMethods), digits_fed(3), "fedmlb", 1)


def normalised() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10)).double()


def test_fedbn_without_normalisation_is_fedavg() -> None:
    fed = digits_fed(4)
    runs = [train(made(WithBlocks), fed, fk.algorithm(n, lr=LR), 3, cohort=2) for n in ("fedbn", "fedavg")]
    assert torch.equal(runs[0].params, runs[1].params)


@pytest.mark.parametrize("engine", ["sequential", "processes"])
@pytest.mark.parametrize("clip", [None, 1e9])
def test_fedbn_is_what_its_paper_says(engine: str, clip: float | None) -> None:
    fed = digits_fed(3)
    shared = [0, 1, 4, 5]  # the linear layers among the parameters; 2 and 3 are the normalisation
    world = normalised()
    nets = [copy.deepcopy(world) for _ in range(3)]
    for t in range(3):
        for i, net in enumerate(nets):
            with torch.no_grad():
                for j in shared:
                    list(net.parameters())[j].copy_(list(world.parameters())[j])
            for x, y in batches(fed, t, i):
                sgd(net, functional.cross_entropy(net(x), y))
        world = average(nets)
    run = train(normalised(), fed, fk.algorithm("fedbn", lr=LR), 3, engine=engine, clip=clip)
    expected = torch.cat([list(world.parameters())[j].detach().reshape(-1) for j in shared])
    torch.testing.assert_close(run.params, expected, rtol=1e-9, atol=1e-11)
    assert run.history[-1]["up"] == run.history[-1]["down"] == len(expected)
    for i, net in enumerate(nets):
        own = [list(net.parameters())[j] for j in (2, 3)] + [net[2].running_mean, net[2].running_var]
        kept = run.clients[i].values[: 4 * 12]
        torch.testing.assert_close(kept, torch.cat([z.detach().reshape(-1) for z in own]), rtol=1e-9, atol=1e-11)
    assert 0 <= run.history[-1]["client_accuracy"] <= 1
