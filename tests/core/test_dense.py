"""Hand-written gradients of dense networks equal those of autograd. They are used only for networks and losses that fit."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedkeel as fk
from fedkeel.core import steps
from fedkeel.core.dense_gradients import Dense, DenseMany, is_dense
from fedkeel.core.flat import FlatModel
from fedkeel.models import make_model

NETS = {
    "one layer": lambda: nn.Linear(6, 3),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "blocks": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(6, 7), nn.ReLU(inplace=True)), nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 3)
    ),
}


def client(B=8, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.randn(B, 6, dtype=dtype), torch.randint(0, 3, (B,))


def by_autograd(module, flat, w, x, y):
    flat.bind(w)
    loss = functional.cross_entropy(module(x), y)
    return loss.detach(), torch.cat([g.flatten() for g in torch.autograd.grad(loss, flat.trained)])


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("B", [1, 2, 7, 64])
def test_one_client(name, B):
    module = NETS[name]().double()
    flat = FlatModel(module)
    w, gradient = flat.vector(), torch.empty(flat.d, dtype=torch.float64)
    x, y = client(B, dtype=torch.float64)
    loss, expected = by_autograd(module, flat, w, x, y)
    with torch.no_grad():
        assert torch.equal(Dense(flat).gradient(w, x, y, flat.views(gradient)), loss)
    torch.testing.assert_close(gradient, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", NETS)
def test_many_clients_at_once_match_one_at_a_time(name):
    module = NETS[name]().double()
    flat = FlatModel(module)
    w = flat.vector() + 0.1 * torch.randn(3, flat.d, dtype=torch.float64)
    sizes = [5, 8, 2]  # the rest is padding of weight 0
    batches = [client(8, seed, torch.float64) for seed in range(3)]
    x, y = (torch.stack(z) for z in zip(*batches, strict=True))
    weight = torch.stack([(torch.arange(8) < n).double() / n for n in sizes])
    with torch.no_grad():
        found, losses = DenseMany(flat).gradient(w, x, y, weight)
    for i, n in enumerate(sizes):
        loss, gradient = by_autograd(module, flat, w[i], x[i, :n], y[i, :n])
        torch.testing.assert_close(found[i], gradient, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(losses[i], loss, rtol=1e-12, atol=1e-14)


def test_many_clients_from_the_same_start():
    flat = FlatModel(NETS["blocks"]())
    x, y = torch.randn(3, 4, 6), torch.randint(0, 3, (3, 4))
    weight, same = torch.full((3, 4), 0.25), flat.vector().expand(3, -1)
    with torch.no_grad():
        found, theirs = (DenseMany(flat).gradient(w, x, y, weight)[0] for w in (same, same.clone()))
    torch.testing.assert_close(found, theirs)


# When it is used ------------------------------------------------------------------------------------------------------


class Odd(nn.Linear):
    def forward(self, x):
        return super().forward(-x)


def hooked():
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda *_: None)
    return layer


def frozen():
    layer = nn.Linear(4, 3)
    layer.weight.requires_grad_(False)
    return layer


def patched():
    layer = nn.Linear(4, 3)
    layer.forward = lambda x: x[:, :3]
    return layer


TIED = nn.Linear(4, 4)
OTHERS = {
    "nothing": [],
    "dropout": [nn.Linear(4, 3), nn.Dropout(0.5)],
    "normalisation": [nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)],
    "tanh": [nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)],
    "relu last": [nn.Linear(4, 3), nn.ReLU()],
    "relu first": [nn.ReLU(), nn.Linear(4, 3)],
    "no bias": [nn.Linear(4, 3, bias=False)],
    "derived": [Odd(4, 3)],
    "tied": [TIED, nn.ReLU(), TIED],
    "twice": [TIED, TIED],
    "hooked": [hooked()],
    "frozen": [frozen()],
    "patched": [patched()],
    "convolution": [nn.Conv1d(1, 1, 1), nn.Linear(4, 3)],
}


@pytest.mark.parametrize("name", OTHERS)
def test_networks_that_are_not_dense(name):
    module = nn.Sequential(nn.Flatten(), *OTHERS[name])
    if any(p.requires_grad for p in module.parameters()):
        assert not is_dense(FlatModel(module))


@pytest.mark.parametrize("name", ["logistic", "mlp", "mlp3"])
def test_the_dense_models_of_fedkeel_are_recognised(name):
    assert is_dense(FlatModel(make_model(name, (1, 8, 8), 10)))


def test_autograd_handles_inputs_with_more_dimensions():
    flat = FlatModel(NETS["blocks"]())  # does not flatten, so the layer would act on every position
    assert Dense(flat).takes(torch.zeros(2, 6), torch.zeros(2).long())
    assert not Dense(flat).takes(torch.zeros(2, 4, 6), torch.zeros(2, 4).long())
    assert not Dense(flat).takes(torch.zeros(2, 6), torch.zeros(2, 3))  # probabilities
    assert Dense(FlatModel(NETS["flattened"]())).takes(torch.zeros(2, 3, 2), torch.zeros(2).long())


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_training_matches_autograd(engine, monkeypatch):
    fed = fk.load("digits").split("dirichlet_per_class", clients=10, concentration=0.3)  # batches of many sizes

    def weights(algorithm):
        return fk.train(
            lambda: make_model("mlp", (1, 8, 8), 10), fed, algorithm, rounds=2, cohort=3, local_epochs=1, batch_size=16,
            engine=engine, dtype=torch.float64, progress=False,
        ).params  # fmt: skip

    with_it = {name: weights(name) for name in ("fedavg", "gradma")}
    monkeypatch.setattr(steps, "is_dense", lambda model: False)
    for name, found in with_it.items():
        torch.testing.assert_close(found, weights(name), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_user_loss_may_change_between_calls(engine):
    fed = fk.load("digits").split("iid", clients=4)
    scale = [1.0]

    def loss(output, target):
        return scale[0] * functional.cross_entropy(output, target)

    def off(row):
        scale[0] = 0.0  # from the second round on there is nothing to learn

    options = {"cohort": 4, "local_steps": 5, "batch_size": 8, "loss": loss, "engine": engine}
    one = fk.train(lambda: make_model("mlp", (1, 8, 8), 10), fed, "fedavg", rounds=1, progress=False, **options)
    two = fk.train(lambda: make_model("mlp", (1, 8, 8), 10), fed, "fedavg", rounds=2, progress=off, **options)
    assert torch.equal(one.params, two.params)
