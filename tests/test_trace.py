"""Recordings of vmapped gradients: the same bits as the function itself, for whatever shapes come."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from fedkeel.core.trace import Traced

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
