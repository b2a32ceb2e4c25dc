"""Hostile replies of a client, more than sixty kinds: the round goes on without it, names it, and the model stays finite."""
# ruff: noqa: E402

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord

from fedkeel.deploy.arrays import to_array
from fedkeel.deploy.messages import FIELDS
from tests.deploy.test_deploy import N, deploy, fed, impatient, make_grid  # noqa: F401

Change = Callable[[Any], Any]  # of a reply's content; it may return an Error instead
NUMBERS = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf, "huge": 1e30, "-huge": -1e30, "limit": 1.1e8}


def set_number(record: str, field: str, value: float, place: int) -> Change:
    def change(content: Any) -> None:
        dtype = torch.float64 if record == "buffers" else torch.float32
        z = torch.frombuffer(bytearray(content[record][field].data), dtype=dtype)
        z[place] = value
        content[record][field] = to_array(z)

    return change


def set_array(**changes: Any) -> Change:
    def change(content: Any) -> None:
        old = content["up"]["dx"]
        kept = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": old.data}
        content["up"]["dx"] = Array(**(kept | changes))

    return change


def set_fact(name: str, value: Any) -> Change:
    return lambda content: content[FIELDS].__setitem__(name, value)


def without(*path: str) -> Change:
    def change(content: Any) -> None:
        place = content
        for name in path[:-1]:
            place = place[name]
        del place[path[-1]]

    return change


def put(name: str, record: Any) -> Change:
    return lambda content: content.__setitem__(name, record)


WAYS: dict[str, Change] = {}
for (word, value), (record, field), place in itertools.product(
    NUMBERS.items(), [("up", "dx"), ("up", "v_hat"), ("buffers", "values")], [0, -1]
):
    WAYS[f"{field}[{place}] {word}"] = set_number(record, field, value, place)
WAYS |= {
    "v_hat negative": set_number("up", "v_hat", -1e-3, 5),
    "v_hat -9e7": set_number("up", "v_hat", -9e7, 0),
    "variance negative": set_number("buffers", "values", -1e6, 8),
    "count negative": set_number("buffers", "values", -5.0, 16),
    **{f"{name} type": set_fact(name, b"x") for name in ("run", "stage", "round", "client", "loss", "fresh", "schema")},
    **{f"{name} missing": without(FIELDS, name) for name in ("run", "stage", "round", "client", "loss", "fresh", "schema")},
    **{f"loss {word}": set_fact("loss", value) for word, value in NUMBERS.items() if word != "nan"},
    "other run": set_fact("run", "0" * 32),
    "other stage": set_fact("stage", "warmup"),
    "other round": set_fact("round", 7),
    "other client": set_fact("client", 1),
    "more facts": set_fact("note", "x" * 100_000),
    "no facts": without(FIELDS),
    "no upload": without("up"),
    "no buffers": without("buffers"),
    "no dx": without("up", "dx"),
    "no v_hat": without("up", "v_hat"),
    "empty upload": put("up", ArrayRecord()),
    "upload is a config": put("up", ConfigRecord({"dx": 1})),
    "upload is a metric": put("up", MetricRecord({"dx": 1.0})),
    "facts are a metric": put(FIELDS, MetricRecord({"round": 1})),
    "another record": put("gift", ArrayRecord({"z": to_array(torch.zeros(1000))})),
    "another metric": put("gift", MetricRecord({"z": 1.0})),
    "another array": lambda content: content["up"].__setitem__("z", to_array(torch.zeros(3))),
    "shape transposed": set_array(shape=(2, 5)),
    "shape negative": set_array(shape=(-1,)),
    "shape of 2^31": set_array(shape=((1 << 31) - 1,)),
    "dtype double": set_array(dtype="float64"),
    "dtype object": set_array(dtype="object"),
    "stored as numpy": set_array(stype="numpy.ndarray"),
    "stored as pickle": set_array(stype="pickle", data=b"cos\nsystem\n(S'true'\ntR."),
    "no bytes": set_array(data=b""),
    "one byte less": lambda content: set_array(data=content["up"]["dx"].data[:-1])(content),
    "one byte more": lambda content: set_array(data=content["up"]["dx"].data + b"x")(content),
    "four megabytes": set_array(data=bytes(1 << 22), shape=(1 << 20,)),
    "name of controls": lambda content: content["up"].__setitem__("\x1b[2J", content["up"].pop("dx")),
    "an error": lambda content: Error(2, "ZeroDivisionError"),
    "an error of controls": lambda content: Error(2, "\x1b[2J\r\n" * 1000),
    "an unknown code": lambda content: Error(99999, ""),
    "silence": lambda content: None,
}


def test_there_are_sixty_kinds() -> None:
    assert len(WAYS) >= 60


@pytest.mark.parametrize("how", WAYS)
def test_a_hostile_reply_is_dropped_and_named(how: str, fed: Any, tmp_path: Path) -> None:  # noqa: F811
    grid = make_grid(fed, "fedlada", tmp_path)

    def spoil(node: int, reply: Message) -> Message | None:
        trained = not reply.has_error() and "up" in reply.content.array_records
        if node != 102 or not trained or reply.content[FIELDS]["round"] != 1:
            return reply
        if how == "silence":
            return None
        made = WAYS[how](reply.content)
        return Message(made, reply_to=grid.sent[-1]) if isinstance(made, Error) else reply

    grid.spoil = spoil
    lines: list[str] = []
    run = deploy(grid, fed, "fedlada", lines, cohort=N)
    assert list(run.history[1]["faults"]) == ["2"]
    assert run.history[1]["answered"] == [0, 1, 3]
    assert [row["dropped"] for row in run.history] == [0, 1, 0, 0]
    assert torch.isfinite(run.params).all()
    assert all(z.isfinite().all() for z in run.model.state_dict().values())
    assert all(line.isprintable() for line in lines)
    assert len("".join(lines)) < 20_000
