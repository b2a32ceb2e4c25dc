"""Federations of data sets: of torch, of Hugging Face, and streams. Samples are read when a batch needs them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import fedkeel as fk

generator = torch.Generator().manual_seed(0)
X = torch.randn(90, 6, generator=generator)
Y = (X.sum(1) > 0).long()
PARTS = [TensorDataset(X[i::3], Y[i::3]) for i in range(3)]
TEST = TensorDataset(X, Y)


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


class Noisy(Dataset):  # type: ignore[type-arg]
    """Draws from the three global generators, as transforms of pictures do."""

    def __init__(self, part: TensorDataset) -> None:
        self.part = part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, i: int) -> Any:
        x, y = self.part[i]
        return x + 0.1 * (torch.rand(()) + random.random() + np.random.rand()).float(), y


def train(fed: fk.Federation, engine: str = "sequential", method: str = "scaffold", **settings: Any) -> fk.Run:
    settings = {"rounds": 3, "cohort": 2, "local_steps": 3, "batch_size": 8, "progress": False} | settings
    torch.manual_seed(0)
    return fk.train(torch.nn.Linear(6, 2), fed, method, engine=engine, **settings)


def test_data_sets_give_the_weights_of_the_same_tensors() -> None:
    tensors = fk.Federation.from_arrays([part.tensors for part in PARTS], test=(X, Y))
    read = fk.Federation.from_datasets(PARTS, test=TEST)
    for method in ("scaffold", "mime"):  # mime needs gradients over all local data
        one, other = train(tensors, method=method), train(read, method=method)
        assert torch.allclose(one.params, other.params, atol=1e-6)
        assert one.history[-1]["test_accuracy"] == other.history[-1]["test_accuracy"]


@pytest.mark.parametrize("kind", ["noisy", "stream"])
def test_every_engine_has_the_same_bits(kind: str) -> None:
    fed = fk.Federation.from_datasets([Noisy(part) if kind == "noisy" else Stream(part) for part in PARTS], test=TEST)
    state = random.getstate(), torch.get_rng_state()
    one, other = train(fed), train(fed, "processes", workers=2)
    assert torch.equal(one.params, other.params)
    assert random.getstate() == state[0]
    del state


def test_a_stream_is_read_on_in_every_round() -> None:
    """30 samples, 24 of them in a round: 0 to 23, 24 to 17, ..."""
    seen: list[int] = []

    def collate(samples: list[Any]) -> Any:
        seen.extend(int(number) for number, _, _ in samples)
        return torch.stack([x for _, x, _ in samples]), torch.stack([y for _, _, y in samples])

    stream = Stream([(i, X[i], Y[i]) for i in range(30)])
    fed = fk.Federation.from_datasets([stream], collate=collate)
    assert fed.sizes.tolist() == [30], "counted by reading it once"
    del seen[:]
    train(fed, method="fedavg", cohort=1, rounds=2)
    read = seen[2:] if seen[:2] == [0, 1] else seen  # a check reads two samples first
    assert read == [i % 30 for i in range(48)] or read == [*(i for i in range(24)), *((24 + i) % 30 for i in range(24))]


def test_a_killed_run_resumes_with_the_same_bits(tmp_path: Any) -> None:
    fed = fk.Federation.from_datasets([Noisy(part) for part in PARTS], test=TEST)
    whole = train(fed, rounds=4)

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(fed, rounds=4, out=tmp_path, progress=stop)
    assert torch.equal(train(fed, rounds=4, out=tmp_path, resume=True).params, whole.params)
    other = fk.Federation.from_datasets([Noisy(TensorDataset(part.tensors[0] + 1, part.tensors[1])) for part in PARTS], TEST)
    with pytest.raises(ValueError, match="the data differ"):
        train(other, rounds=5, out=tmp_path, resume=True)


def test_hugging_face_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    parts = [datasets.Dataset.from_dict({"x": x.tolist(), "label": y.tolist()}) for x, y in (part.tensors for part in PARTS)]

    def pair(samples: list[dict[str, Any]]) -> Any:
        return torch.tensor([z["x"] for z in samples]), torch.tensor([z["label"] for z in samples])

    wanted = train(fk.Federation.from_datasets(PARTS, test=TEST)).params
    assert torch.equal(train(fk.Federation.from_datasets(parts, test=parts[0], collate=pair)).params, wanted)
    streams = [part.to_iterable_dataset() for part in parts]
    as_streams = train(fk.Federation.from_datasets(streams, collate=pair)).params
    assert torch.equal(as_streams, train(fk.Federation.from_datasets([Stream(part) for part in PARTS])).params)
    batch, none = fk.Federation.from_datasets(parts).take(0, np.arange(4))  # without collate: a dictionary of tensors
    assert none is None
    assert torch.equal(batch["x"], PARTS[0].tensors[0][:4])
    with pytest.raises(ValueError, match=r"a batch is a dict, not a pair.* pass step="):
        train(fk.Federation.from_datasets(parts))
    with pytest.raises(ValueError, match=r"datasets\[0\].*holds several splits"):
        fk.Federation.from_datasets([datasets.DatasetDict(train=parts[0])])


MISPLACED = [
    (
        lambda: fk.Federation.from_arrays(PARTS),
        "clients[0]: expected a pair (x, y) of arrays, not torch's TensorDataset; Fed",
    ),
    (lambda: fk.Federation.from_arrays([DataLoader(TEST)]), "torch's DataLoader; pass data sets, not loaders"),
    (lambda: fk.Federation.from_arrays(TEST), "Federation.from_datasets takes a list of data sets"),
    (lambda: fk.Federation.from_datasets([DataLoader(TEST)]), "pass its data set, loader.dataset"),
    (lambda: fk.Federation.from_datasets(TEST), "expected a list with one data set per client"),
    (lambda: fk.Federation.from_datasets([(X, Y)]), "pairs of arrays are for Federation.from_arrays"),
    (lambda: fk.Federation.from_datasets([]), "there are none"),
    (lambda: fk.Federation.from_datasets([TensorDataset(X[:0], Y[:0])]), "datasets[0]: it has no samples"),
    (lambda: train(TEST), "fed: expected a Federation, not torch's TensorDataset"),
    (lambda: train(fk.load("digits")), "fed: expected a Federation, not Dataset; split it among clients"),
    (lambda: fk.model("mlp", fk.load("digits")), "split it among clients"),
    (lambda: fk.model("mlp", fk.Federation.from_datasets(PARTS)), "pass classes="),
]


@pytest.mark.parametrize(("call", "message"), MISPLACED, ids=[message for _, message in MISPLACED])
def test_errors_say_where_data_belong(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_other_engines_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="data sets are read one batch at a time"):
        train(fk.Federation.from_datasets(PARTS), "vectorized")
