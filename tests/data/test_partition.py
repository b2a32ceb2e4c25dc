"""Partitions use every sample once, leave no client empty, and errors name a wrong option."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.data.partition import PARTITIONS, partition

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "iid": [{}],
    "quantity": [{"concentration": 1e-300}, {"concentration": 0.5}],
    "dirichlet_per_class": [
        {"concentration": 0.05, "sizes": "equal"},
        {"concentration": 1e-300},
        {"concentration": 0.05},
        {"concentration": 1e6},
    ],
    "dirichlet_per_client": [
        {"concentration": 0.05, "sizes": "unequal"},
        {"concentration": 1e-300},
        {"concentration": 0.05},
        {"concentration": 1e6},
    ],
    "beta": [{"beta_a": 1e-3, "beta_b": 1e-3}, {"beta_a": 2.0, "beta_b": 5.0}],
    "shards": [{"per_client": 1}, {"per_client": 2}],
    "by_key": [{}],
}


def deal(kind: str, labels: Any, clients: int, seed: int, **options: Any) -> list[np.ndarray]:
    """Beta needs two classes. by_key has as many owners as clients, or one and a half times as many."""
    labels = np.asarray(labels)
    if kind == "beta":
        labels = labels % 2
        labels[: min(2, len(labels))] = [0, 1][: len(labels)]
    owners = min(len(labels), clients + clients // 2 * (seed % 2))
    key = np.arange(len(labels)) % owners if kind == "by_key" else None
    return partition(kind, labels, clients, seed, key, **options)


CASES = [(kind, options) for kind in PARTITIONS for options in OPTIONS[kind]]
every_partition = pytest.mark.parametrize(("kind", "options"), CASES, ids=str)


# Partitions -----------------------------------------------------------------------------------------------------------


def fits(kind: str, options: dict[str, Any], samples: int, clients: int) -> bool:
    return (kind != "shards" or clients * options["per_client"] <= samples) and (kind != "beta" or samples > 1)


@every_partition
@settings(max_examples=40, deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=60), data=st.data(), seed=st.integers(0, 2**64))
def test_every_sample_is_used_once_and_no_client_is_empty(
    kind: str, options: dict[str, Any], labels: list[int], data: st.DataObject, seed: int
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    if not fits(kind, options, len(labels), clients):
        return
    parts = deal(kind, labels, clients, seed, **options)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= 1
    if kind == "iid" or options.get("sizes", {"dirichlet_per_client": "equal"}.get(kind)) == "equal":
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if kind == "shards":
        assert max(map(len, parts)) - min(map(len, parts)) <= options["per_client"]


def many_labels(n: int = 4000, classes: int = 10) -> np.ndarray:
    return np.random.default_rng(0).integers(0, classes, n)


@every_partition
def test_the_seed_determines_the_result(kind: str, options: dict[str, Any]) -> None:
    def split(seed: int) -> list[list[int]]:
        return [part.tolist() for part in deal(kind, many_labels(), 50, seed, **options)]

    assert split(3) == split(3)
    assert split(3) != split(4)


FIRST = {
    "iid": [9, 15, 20, 33, 13, 11, 14, 25],
    "dirichlet_per_class": [5, 12, 15, 22, 24, 25, 34, 39],
    "dirichlet_per_client": [24, 12, 21, 17, 37, 6, 18, 27],
    "shards": [5, 17, 29, 1, 20, 12, 8, 24],
}


def test_partitions_match_the_first_release() -> None:
    """A split is part of an experiment, so it must never change: the first client of each is that of the first release."""
    labels = np.arange(40) % 4
    first = {kind: partition(kind, labels, 5, 7, **OPTIONS[kind][-1])[0].tolist() for kind in FIRST}
    assert first == FIRST


def test_concentration_sets_the_skew() -> None:
    """Mean share of a client's largest class: about 1 for a tiny concentration, about 1/10 for a large one."""
    labels = many_labels(20_000)

    def skew(kind: str, concentration: float) -> float:
        parts = partition(kind, labels, 20, 0, concentration=concentration)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts if len(part) > 20]))

    for kind in ("dirichlet_per_class", "dirichlet_per_client"):
        high, middle, low = (skew(kind, concentration) for concentration in (0.01, 0.5, 1e5))
        assert high > 0.6 > middle > 0.2 > low, (kind, high, middle, low)


def test_per_class_sizes_differ_and_per_client_sizes_do_not() -> None:
    labels = many_labels()
    assert len({len(part) for part in partition("dirichlet_per_class", labels, 40, 0, concentration=0.3)}) > 10
    assert {len(part) for part in partition("dirichlet_per_client", labels, 40, 0, concentration=0.3)} == {100}


def test_equal_sizes_keep_the_classes_of_the_draw() -> None:
    """In the per-class split, clients of equal size are as one-sided as clients of unequal size."""
    labels = many_labels(20_000)

    def skew(sizes: str) -> float:
        parts = partition("dirichlet_per_class", labels, 20, 0, concentration=0.05, sizes=sizes)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts if len(part) > 20]))

    assert skew("equal") > 0.5 * skew("unequal") > 0.3


def test_beta_draws_the_share_of_the_second_class() -> None:
    """If the classes are as frequent as the Beta distribution expects, the shares have its mean and spread."""
    labels = np.arange(700_000) % 7 < 2
    parts = partition("beta", labels.astype(int), 700, 0, beta_a=2.0, beta_b=5.0)
    share = np.array([labels[part].mean() for part in parts])
    assert abs(share.mean() - 2 / 7) < 0.02
    assert abs(share.std() - np.sqrt(2 * 5 / (7**2 * 8))) < 0.02


def test_no_client_of_beta_gets_only_leftovers() -> None:
    """IMDB has equal classes. No client gets one class only because the other is used up."""
    labels = np.arange(50_000) % 2
    share = np.array([labels[part].mean() for part in partition("beta", labels, 100, 0)])
    assert share.max() < 0.97
    assert abs(share.mean() - 0.5) < 0.05


def test_quantity_skews_sizes_and_not_labels() -> None:
    labels = many_labels(20_000)
    parts = partition("quantity", labels, 20, 0, concentration=0.5)
    assert max(map(len, parts)) > 10 * min(map(len, parts))
    largest = max(parts, key=len)
    assert np.abs(np.bincount(labels[largest]) / len(largest) - 0.1).max() < 0.03


def test_owners_stay_together() -> None:
    key = np.random.default_rng(1).integers(0, 30, 1000) * 7
    for clients in (30, 8):
        parts = partition("by_key", many_labels(1000), clients, 0, key)
        owners = [set(key[part].tolist()) for part in parts]
        assert sum(map(len, owners)) == len(set().union(*owners)) == 30
        assert max(map(len, owners)) - min(map(len, owners)) <= 1
    assert [key[part][0] for part in partition("by_key", many_labels(1000), 30, 0, key)] == [7 * i for i in range(30)]


@pytest.mark.parametrize("per_client", [1, 2, 3])
def test_shards_hold_few_labels(per_client: int) -> None:
    """A shard that crosses a border between classes has two labels, and ten classes have nine borders."""
    labels = many_labels()
    kinds = [len(np.unique(labels[part])) for part in partition("shards", labels, 40, 0, per_client=per_client)]
    assert max(kinds) <= 2 * per_client
    assert sum(kinds) <= 40 * per_client + 9


BAD = [
    ("dirichlet_per_class", {"concentration": 0}, "concentration = 0 "),
    ("dirichlet_per_class", {"concentration": -1.0}, "concentration = -1.0 "),
    ("dirichlet_per_client", {"concentration": float("nan")}, "concentration = nan "),
    ("dirichlet_per_client", {"concentration": float("inf")}, "concentration = inf "),
    ("dirichlet_per_client", {"concentration": "much"}, "concentration = 'much' "),
    ("dirichlet_per_class", {"concentration": True}, "concentration = True "),
    ("quantity", {"concentration": -2}, "concentration = -2 "),
    ("dirichlet_per_class", {"sizes": "same"}, "sizes = 'same' is not allowed; it must be 'equal' or 'unequal'"),
    ("beta", {}, "'beta' is for two classes, these data have 4"),
    ("beta", {"beta_a": 0}, "beta_a = 0 "),
    ("by_key", {}, "'by_key' needs data whose samples have owners"),
    ("by_key", {"key": np.arange(40) % 5}, "clients = 10 is not allowed; it must be from 1 to the number of owners, 5"),
    ("shards", {"per_client": 0}, "per_client = 0 "),
    ("shards", {"per_client": 5}, "per_client = 5 "),
    ("shards", {"per_client": 1.5}, "per_client = 1.5 "),
    ("shards", {"per_client": "2"}, "per_client = '2' "),
    ("iid", {"clients": 41}, "clients = 41 is not allowed; it must be from 1 to the number of samples, 40"),
    ("iid", {"clients": 0}, "clients = 0 "),
    ("iid", {"clients": 2.0}, "clients = 2.0 "),
    ("iid", {"seed": -1}, "seed = -1 "),
    ("iid", {"seed": "x"}, "seed = 'x' "),
    ("iid", {"concentration": 1}, "unknown option 'concentration'"),
    ("dirichlet_per_clas", {}, "did you mean dirichlet_per_class"),
]


@pytest.mark.parametrize(("kind", "options", "message"), BAD, ids=str)
def test_bad_options_are_named(kind: str, options: dict[str, Any], message: str) -> None:
    arguments = {"clients": 10, "seed": 0} | options
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        partition(kind, np.arange(40) % 4, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("y", [torch.zeros(40, 5).long(), torch.zeros(40, 1).long(), torch.zeros(40), torch.rand(40, 2)])
@pytest.mark.parametrize("kind", PARTITIONS)
def test_splits_by_class_need_classes(kind: str, y: torch.Tensor) -> None:
    """Tokens and real numbers are not classes: a split by class would lose samples. Other splits accept them."""
    data = fk.Dataset("t", torch.randn(40, 6), y, key=np.arange(40) % 8)
    if kind in ("iid", "quantity", "by_key"):
        order = data.split(kind, clients=4).order
        assert order is not None
        assert sorted(order.tolist()) == list(range(40))
        return
    with pytest.raises(ValueError, match=rf"^split: '{kind}' needs one class.* iid, quantity and by_key take any") as error:
        data.split(kind, clients=4)
    assert "\n" not in str(error.value)


def test_options_may_be_numpy_numbers() -> None:
    parts = partition("dirichlet_per_class", many_labels(), np.int64(5), np.uint32(1), concentration=np.float32(0.5))
    assert len(parts) == 5
    assert len(partition("shards", many_labels(), 5, 0, per_client=np.int32(2))) == 5


@pytest.mark.slow
@pytest.mark.parametrize("classes", [10, 1000])
@pytest.mark.parametrize("kind", PARTITIONS)
def test_a_million_samples_for_ten_thousand_clients(kind: str, classes: int) -> None:
    labels = many_labels(1_000_000, classes)
    start = time.process_time()  # other programs may use the machine
    parts = deal(kind, labels, 10_000, 0, **OPTIONS[kind][-1] | ({"concentration": 0.1} if "dir" in kind else {}))
    seconds = time.process_time() - start
    assert np.bincount(np.concatenate(parts), minlength=1_000_000).tolist() == [1] * 1_000_000
    assert seconds < 15, seconds


def test_many_empty_clients_are_filled_quickly() -> None:
    """Nearly all of these clients get nothing at first. Searching for the largest client each time would take minutes."""
    start = time.perf_counter()
    parts = partition("dirichlet_per_class", many_labels(300_000), 200_000, 0, concentration=1e-4)
    assert min(map(len, parts)) == 1
    assert time.perf_counter() - start < 20
