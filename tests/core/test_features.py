"""Methods that look into the model, against numpy (tests/reference): written independently, from the papers."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.core.features import FrozenNet
from fedkeel.core.flat import FlatModel
from fedkeel.engine import seeding
from tests.reference import fedbn, fedmlb, moon
from tests.reference.network import flat
from tests.tasks import digits_fed

K, BATCH, LR, SEED = 3, 8, 0.3, 0
COHORTS = [[0, 2], [1, 2], [0, 3], [2, 3], [0, 1]]


class WithMethods(nn.Module):
    """Shows its features through methods."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU())
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
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU())
        second = nn.Sequential(nn.Linear(12, 11), nn.ReLU())
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


def numbers(net: nn.Module) -> list[np.ndarray]:
    """The parameters as the references take them."""
    return [p.detach().numpy().copy() for p in net.parameters()]


def all_batches(fed: fk.Federation) -> list[dict[int, list[tuple[np.ndarray, np.ndarray]]]]:
    return [
        {i: [(x.flatten(1).numpy(), y.numpy()) for x, y in batches(fed, t, i)] for i in cohort}
        for t, cohort in enumerate(COHORTS)
    ]


MOON = {"mu": 2.0, "temperature": 0.3}
MLB = {"lam1": 0.9, "lam2": 0.7, "lam3": 1.3, "temperature": 2.0}


@pytest.mark.parametrize(
    ("name", "reference", "model", "hp"),
    [
        ("moon", moon, WithMethods, {}),
        ("moon", moon, WithMethods, MOON | {"server_lr": 0.8}),
        ("moonm", moon, WithMethods, MOON | {"beta1": 0.7}),
        ("fedmlb", fedmlb, WithBlocks, {}),
        ("fedmlb", fedmlb, WithBlocks, MLB | {"server_lr": 0.8}),
        ("fedmlbm", fedmlb, WithBlocks, MLB | {"beta1": 0.7}),
    ],
)
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("decay", [{}, {"lr_decay": 0.9, "weight_decay": 0.01}])
def test_same_weights_as_the_reference(
    name: str, reference: Any, model: type[nn.Module], hp: dict[str, Any], weights: str, decay: dict[str, float]
) -> None:
    """Clients take part for the first time, again, and again after an absence."""
    fed = digits_fed(4)
    algo = fk.algorithm(name, lr=LR, **hp)
    known = inspect.signature(reference.run).parameters
    values = {key: value for key, value in dataclasses.asdict(algo).items() if key in known}
    shares = fed.sizes.tolist() if weights == "samples" else None
    expected = reference.run(numbers(made(model)), all_batches(fed), COHORTS, weights=shares, **values, **decay)
    run = train(made(model), fed, algo, len(COHORTS), cohort=COHORTS, weights=weights, **decay)
    np.testing.assert_allclose(run.params.numpy(), flat(expected[-1]), rtol=1e-9, atol=1e-11)


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


@pytest.mark.parametrize(("name", "hp"), [("moon", {"mu": 0.0}), ("fedmlb", {"lam2": 0.0, "lam3": 0.0})])
def test_a_term_without_weight_changes_neither_losses_nor_statistics(name: str, hp: dict[str, Any]) -> None:
    """Evaluating features at other points does not change the normalisation statistics: they see the batch once."""
    fed = digits_fed(4)

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10)).double()

    one, two = (train(model(), fed, algo, 3) for algo in (fk.algorithm(name, lr=LR, **hp), fk.algorithm("fedavg", lr=LR)))
    torch.testing.assert_close(one.model.state_dict(), two.model.state_dict(), rtol=1e-9, atol=1e-12)
    losses = [[row["train_loss"] for row in run.history] for run in (one, two)]
    np.testing.assert_allclose(*losses, rtol=1e-12)


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
    losses = [[row["train_loss"] for row in run.history] for run in runs]  # the loss of the task, without the term
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
    assert losses[0] == losses[2]


def test_a_model_without_features_or_blocks_is_refused() -> None:
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
def test_fedbn_follows_its_paper(engine: str, clip: float | None) -> None:
    fed = digits_fed(4)
    *_, (expected, norms) = fedbn.rounds(numbers(normalised()), all_batches(fed), COHORTS, lr=LR)
    run = train(normalised(), fed, fk.algorithm("fedbn", lr=LR), len(COHORTS), cohort=COHORTS, engine=engine, clip=clip)
    shared = flat([expected[j] for j in fedbn.SHARED])
    np.testing.assert_allclose(run.params.numpy(), shared, rtol=1e-9, atol=1e-11)
    assert run.history[-1]["up"] == run.history[-1]["down"] == len(shared)
    assert sorted(norms) == list(range(4))
    for i, norm in norms.items():
        own = flat([norm.gamma, norm.beta, norm.mean, norm.var])
        np.testing.assert_allclose(run.clients[i].values[: 4 * 12].numpy(), own, rtol=1e-9, atol=1e-11)
    assert 0 <= run.history[-1]["client_accuracy"] <= 1


# The model at points where it is not trained --------------------------------------------------------------------------


class Counting(WithMethods):
    """Remembers how many samples each forward pass had."""

    seen: ClassVar[list[int]] = []

    def forward_features(self, x: Tensor) -> Tensor:
        Counting.seen.append(len(x))
        return super().forward_features(x)


def frozen_net(model: nn.Module) -> tuple[FrozenNet, Tensor, list[tuple[Tensor, Tensor]]]:
    net = FrozenNet(FlatModel(model))
    x = torch.randn(22, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batches = [(z, torch.zeros(len(z))) for z in x.split(8)]
    return net, FlatModel(made(WithMethods)).vector(), batches


@pytest.mark.parametrize(("most", "passes"), [(1000, [22]), (16, [16, 6]), (8, [8, 8, 6]), (1, [8, 8, 6])])
def test_features_of_several_batches_are_computed_at_once(most: int, passes: list[int]) -> None:
    net, w, batches = frozen_net(made(Counting))
    Counting.seen.clear()
    for x, _ in batches:
        torch.testing.assert_close(net.at(w, batches, most).features(x), made(WithMethods).body(x).detach())
    assert Counting.seen == passes


def test_all_data_in_every_step_are_computed_once() -> None:
    net, w, batches = frozen_net(made(Counting))
    Counting.seen.clear()
    again = [batches[0]] * 3
    for x, _ in again:
        net.at(w, again, 1000).features(x)
    assert Counting.seen == [8]


def test_a_point_that_moves_is_noticed() -> None:
    net, w, batches = frozen_net(made(WithMethods))
    x = batches[0][0]
    before = net.at(w, batches, 1000).features(x)
    w.mul_(2)
    assert not torch.allclose(net.at(w, batches, 1000).features(x), before)
    others = [(z.clone(), y) for z, y in batches]
    assert torch.equal(net.at(w, others, 1000).features(others[0][0]), net.at(w, batches, 1000).features(x))


def test_dropout_is_drawn_for_each_batch() -> None:
    model = made(Counting)
    model.body.append(nn.Dropout(0.5))
    net, w, batches = frozen_net(model)
    Counting.seen.clear()
    for x, _ in batches:
        net.at(w, batches, 1000).features(x)
    assert Counting.seen == [8, 8, 6]
