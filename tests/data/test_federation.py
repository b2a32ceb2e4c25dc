"""Federations: every client has its samples, wrong arrays are named, fingerprints change with the data."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.data.partition import partition


def pair(n: int = 4, width: int = 3) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(n * width, dtype=np.float32).reshape(n, width), np.arange(n)


def test_each_client_has_its_samples() -> None:
    x, y = pair(9)
    fed = fk.Federation.from_arrays([(x[:2], y[:2]), (x[2:3], y[2:3]), (torch.tensor(x[3:]), torch.tensor(y[3:]))])
    assert len(fed) == 3
    assert [len(client) for client in fed] == [2, 1, 6] == fed.sizes.tolist()
    assert fed[1].x.tolist() == [[6, 7, 8]]
    assert fed[2].y.tolist() == [3, 4, 5, 6, 7, 8]
    assert fed.take(2, np.array([5, 0]))[1].tolist() == [8, 3]
    with pytest.raises(IndexError, match="client 3 does not exist"):
        fed[3]


def test_pandas_frames_as_clients() -> None:
    """The index of a frame is ignored, whatever it starts with. Text columns are refused."""
    pandas = pytest.importorskip("pandas")
    x, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 1, 2])
    rows = [10, 30, 20, 40]
    frame, labels = pandas.DataFrame(x, index=rows), pandas.Series(y, index=rows)
    fed = fk.Federation.from_arrays([(frame, labels)], test=(frame, labels))
    for pair in ((fed.x, fed.y), fed.test):
        assert torch.equal(pair[0], torch.tensor(x))
        assert torch.equal(pair[1], torch.tensor(y))
    with pytest.raises(ValueError, match=r"clients\[0\]: expected a pair"):
        fk.Federation.from_arrays([(frame.assign(name="a"), labels)])


def test_a_split_is_a_view_of_the_partition() -> None:
    data = fk.load("digits")
    fed = data.split("dirichlet_per_class", clients=30, concentration=0.2, seed=5)
    parts = partition("dirichlet_per_class", data.y.numpy(), 30, 5, concentration=0.2)
    for client in (0, 7, 29):
        assert torch.equal(fed[client].y, data.y[parts[client]])
        assert torch.equal(fed[client].x, data.x[parts[client]])
    assert fed.test is data.test
    assert int(fed.sizes.sum()) == len(data.y)


x4, y4 = pair()
REFUSED = [
    ([], "clients: there are none"),
    (None, "clients: expected a list"),
    ([(x4, y4[:3])], "clients[0]: 4 inputs but 3 targets"),
    ([(x4, y4), (x4[:0], y4[:0])], "client 1 has no samples"),
    ([(x4, y4), (np.array([]), np.array([]))], "client 1 has no samples"),
    ([([], []), (x4, y4)], "client 0 has no samples"),
    ([(x4, y4), (x4[:, :2], y4)], "clients[1]: samples have shape [2], those of client 0 have [3]"),
    ([(x4, y4), (x4, np.stack([y4, y4], 1))], "clients[1]: targets have shape [2], those of client 0 have []"),
    ([(x4, y4, y4)], "clients[0]: expected a pair"),
    ([(x4,)], "clients[0]: expected a pair"),
    ([7], "clients[0]: expected a pair"),
    ([(1.0, 2.0)], "clients[0]: expected a pair"),
    ([(np.array(["a", "b"]), np.array([0, 1]))], "clients[0]: expected a pair"),
    ([(x4, None)], "clients[0]: expected a pair"),
]


@pytest.mark.parametrize(("clients", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_bad_arrays_are_named(clients: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        fk.Federation.from_arrays(clients)


@pytest.mark.parametrize("test", [(x4, y4[:2]), (x4,), 3, (x4[:0], y4[:0])])
def test_bad_test_data_are_named(test: Any) -> None:
    with pytest.raises(ValueError, match=r"^test: "):
        fk.Federation.from_arrays([(x4, y4)], test=test)


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    read_only = x4.copy()
    read_only.flags.writeable = False
    wanted = torch.tensor(x4, requires_grad=True)
    for x in (read_only, x4[::-1], wanted, x4.tolist()):
        fed = fk.Federation.from_arrays([(x, y4), (x, y4)])
        assert fed[1].x.tolist() == (x if isinstance(x, list) else x.tolist())
        assert not fed.x.requires_grad
        assert len(fed.fingerprint()) == 32


def test_the_fingerprint_changes_with_data_and_split() -> None:
    def print_of(clients: list[tuple[Any, Any]], test: Any = None) -> str:
        return fk.Federation.from_arrays(clients, test=test).fingerprint()

    x, y = pair(8)
    prints = [
        print_of([(x[:4], y[:4]), (x[4:], y[4:])]),
        print_of([(x[:3], y[:3]), (x[3:], y[3:])]),
        print_of([(x[:4] + 1, y[:4]), (x[4:], y[4:])]),
        print_of([(x[:4], y[:4] + 1), (x[4:], y[4:])]),
        print_of([(x[:4].astype(np.float64), y[:4]), (x[4:], y[4:])]),
        print_of([(x[:4], y[:4]), (x[4:], y[4:])], (x, y)),
        print_of([(x[:4], y[:4]), (x[4:], y[4:])], (x + 1, y)),
        print_of([(torch.tensor(x[:4]).bfloat16(), y[:4]), (torch.tensor(x[4:]).bfloat16(), y[4:])]),
        *(fk.load("digits").split("iid", clients=n, seed=s).fingerprint() for n, s in ((5, 0), (5, 1), (6, 0))),
    ]
    assert len(set(prints)) == len(prints)
    assert prints[0] == print_of([(x[:4].copy(), y[:4]), (x[4:], y[4:])])


def test_every_label_counts_in_the_fingerprint() -> None:
    """Changing one of 100,000 is enough."""
    x, y = np.zeros((100_000, 1), dtype=np.float32), np.zeros(100_000, dtype=np.int64)
    one = fk.Federation.from_arrays([(x, y)]).fingerprint()
    y[77_777] = 1
    assert fk.Federation.from_arrays([(x, y)]).fingerprint() != one


def test_every_input_counts_in_the_fingerprint() -> None:
    x, y = np.zeros((100_000, 1), dtype=np.float32), np.zeros(100_000, dtype=np.int64)
    first = fk.Federation.from_arrays([(x, y)])
    x[77_777] = 1
    second = fk.Federation.from_arrays([(x, y)])
    assert first.fingerprint() != second.fingerprint()
    assert second.had_fingerprint(first.fingerprint(most_inputs=4096)), "version 0.1.0 did not see the difference"


def test_unknown_data_name_its_neighbours() -> None:
    with pytest.raises(ValueError, match="digits"):
        fk.load("digit")


def test_rows_that_are_not_finite_are_named() -> None:
    x = x4.copy()
    x[2, 1] = np.nan
    with pytest.raises(
        ValueError, match=r"^clients\[1\]: the inputs are not finite in 1 of 4 rows, the first of them is row 2"
    ):
        fk.Federation.from_arrays([(x4, y4), (x, y4)])
    with pytest.raises(ValueError, match=r"^test: the targets are not finite in 1 of 4 rows, the first of them is row 0"):
        fk.Federation.from_arrays([(x4, y4)], test=(x4, np.array([np.inf, 0, 0, 0])))
    huge = np.full((4, 3), 3e38, dtype=np.float32)  # their sum is infinite, but every number is finite
    assert len(fk.Federation.from_arrays([(huge, y4)])) == 1


def test_whole_numbers_as_inputs_are_named() -> None:
    fed = fk.Federation.from_arrays([(x4.astype(np.int64), y4)])
    with pytest.raises(ValueError, match=r"the inputs are whole numbers \(int64\), but the model needs floating-point"):
        fk.train(torch.nn.Linear(3, 4), fed, "fedavg", cohort=1)


def test_what_a_notebook_prints_is_short() -> None:
    data = fk.load("digits")
    fed = data.split("shards", clients=10)
    texts = [repr(data), repr(fed), repr(fed[0])]
    assert all(len(text) < 200 and "\n" not in text and "tensor(" not in text for text in texts)
    assert "10 clients" in texts[1]
    assert "1,437 samples" in texts[0]


def test_a_split_by_owners() -> None:
    data = fk.load("digits")
    owners = np.array(["b", "a", "c"])[np.arange(len(data.y)) % 3]
    fed = data.split(owners)
    assert len(fed) == 3
    assert torch.equal(fed[0].y, data.y[1::3]), "client 0 is owner a"
    assert torch.equal(data.split(owners.tolist(), clients=3)[2].x, fed[2].x)
    with pytest.raises(ValueError, match="clients = 4 is not allowed; there are 3 different owners"):
        data.split(owners, clients=4)
    with pytest.raises(ValueError, match="expected the owner of each of the 1437 samples"):
        data.split(owners[:5])
    with pytest.raises(ValueError, match="takes no options, such as 'concentration'"):
        data.split(owners, concentration=0.1)


def test_a_split_by_a_function() -> None:
    data = fk.load("digits")
    by_label = data.split(lambda labels: labels % 5)
    assert [set(client.y.tolist()) for client in by_label] == [{i, i + 5} for i in range(5)]
    some = data.split(lambda labels, clients, rng: [rng.permutation(20) + 20 * i for i in range(clients)], clients=4, seed=1)
    assert some.sizes.tolist() == [20] * 4
    assert torch.equal(some[3].y.sort().values, data.y[60:80].sort().values)
    with pytest.raises(ValueError, match="a sample belongs to several clients"):
        data.split(lambda labels: [np.arange(3), np.arange(2, 5)])
    with pytest.raises(ValueError, match="client 1 must have sample numbers from 0 to 1436"):
        data.split(lambda labels: [np.arange(3), np.array([9999])])


def test_a_cohort_by_a_function() -> None:
    fed = fk.load("digits").split("iid", clients=8)
    ids = [[0, 1, 2], [5], [3, 4]]
    settings: dict[str, Any] = {"rounds": 3, "local_steps": 1, "progress": False, "engine": "sequential"}
    torch.manual_seed(0)
    model = fk.model("logistic", fed)
    by_function = fk.train(model, fed, "fedavg", cohort=lambda t: ids[t], **settings)
    assert torch.equal(by_function.params, fk.train(model, fed, "fedavg", cohort=ids, **settings).params)
    assert [row["clients"] for row in by_function.history] == [3, 1, 2]
    counts = fk.train(model, fed, "fedavg", cohort=lambda t: (2, 0.5, 8)[t], **settings)
    assert [row["clients"] for row in counts.history] == [2, 4, 8]
    with pytest.raises(ValueError, match="cohort: the function returned 'all' for round 0"):
        fk.train(model, fed, "fedavg", cohort=lambda t: "all", **settings)
    with pytest.raises(ValueError, match="cohort: round 2 has 9"):
        fk.train(model, fed, "fedavg", cohort=lambda t: (2, 2, 9)[t], **settings)
