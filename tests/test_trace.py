"""Recordings of gradients: the same bits as without them, for whatever shapes come, and for plain models only."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

import fedkeel as fk
from fedkeel.core import trace
from fedkeel.core.flat import FlatModel
from fedkeel.core.trace import Recorder, Traced, is_plain
from fedkeel.models import make_model

NET = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
SHAPES = [p.shape for p in NET.parameters()]


def losses(w, x, y, weight):
    def one(w, x, y, weight):
        parts = [z.view(shape) for z, shape in zip(w.split([shape.numel() for shape in SHAPES]), SHAPES, strict=True)]
        output = functional_call(NET, dict(zip(dict(NET.named_parameters()), parts, strict=True)), (x,))
        return (nn.functional.cross_entropy(output, y, reduction="none") * weight).sum()

    return vmap(grad_and_value(one))(w, x, y, weight)


def inputs(S, B, seed):
    torch.manual_seed(seed)
    return torch.randn(S, 39), torch.randn(S, B, 5), torch.randint(0, 3, (S, B)), torch.rand(S, B)


def test_a_recording_gives_the_same_bits_for_every_shape_and_stride():
    traced = Traced(losses, after=0)
    first = inputs(3, 4, seed=0)
    shared = first[0][:1].expand(3, -1)  # clients that all begin at x: other strides
    for given in (first, inputs(3, 4, seed=1), inputs(2, 7, seed=2), (shared, *first[1:]), first, inputs(2, 7, seed=3)):
        for ours, theirs in zip(traced(*given), losses(*given), strict=True):
            assert torch.equal(ours, theirs)
    assert len(traced.recordings) == 3


def test_what_it_returns_may_be_changed():
    traced, given = Traced(losses, after=0), inputs(3, 4, seed=0)
    traced(*given)
    before = [z.clone() for z in given]
    traced(*given)[0].zero_()
    assert torch.equal(traced(*given)[0], losses(*given)[0])
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_it_records_what_comes_often_only():
    traced = Traced(losses, after=2)
    for _ in range(2):
        traced(*inputs(3, 4, seed=0))
    traced(*inputs(2, 4, seed=0))
    assert not traced.recordings
    traced(*inputs(3, 4, seed=0))
    assert len(traced.recordings) == 1


# One client at a time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_training_has_the_same_bits_with_and_without_recordings(name, monkeypatch):
    fed = fk.load("digits").split("dirichlet_per_class", clients=10, concentration=0.3)  # batches of many sizes
    played = []
    monkeypatch.setattr(Recorder, "__call__", counting(Recorder.__call__, played))

    def weights(often):
        monkeypatch.setattr(trace, "OFTEN", often)
        return fk.train(
            lambda: make_model(name, (1, 8, 8), 10), fed, "fedlada", rounds=3, cohort=5, local_epochs=1, batch_size=16,
            engine="sequential", progress=False,
        ).params  # fmt: skip

    without = weights(10**9)
    assert not played[-1].recordings
    assert torch.equal(weights(2), without)
    assert len(played[-1].recordings) > 1


def counting(call, seen):
    def counted(self, *args):
        seen.append(self)
        return call(self, *args)

    return counted


class Odd(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def test_only_models_whose_operations_are_known_are_recorded():
    def plain(*layers):
        return is_plain(FlatModel(nn.Sequential(nn.Flatten(), *layers)))

    assert plain(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert not plain(nn.Linear(4, 3), nn.Dropout(0.5))
    assert not plain(Odd(4, 3))
    assert not plain(nn.Linear(4, 3), nn.BatchNorm1d(3))
    hooked, frozen, patched = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
    hooked.register_forward_hook(lambda *_: None)
    frozen.weight.requires_grad_(False)
    patched.forward = lambda x: x
    assert not any(plain(layer) for layer in (hooked, frozen, patched))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_loss_of_the_user_may_change_from_call_to_call(engine):
    fed = fk.load("digits").split("iid", clients=4)
    scale = [1.0]

    def loss(output, target):
        return scale[0] * nn.functional.cross_entropy(output, target)

    def off(row):
        scale[0] = 0.0  # from the second round on there is nothing to learn

    options = {"cohort": 4, "local_steps": trace.OFTEN + 5, "batch_size": 8, "loss": loss, "engine": engine}
    one = fk.train(lambda: make_model("mlp", (1, 8, 8), 10), fed, "fedavg", rounds=1, progress=False, **options)
    two = fk.train(lambda: make_model("mlp", (1, 8, 8), 10), fed, "fedavg", rounds=2, progress=off, **options)
    assert torch.equal(one.params, two.params)
