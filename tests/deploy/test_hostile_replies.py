"""What a server does with replies that are well-formed but impossible, too large, or full of control characters."""
# ruff: noqa: E402

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flwr's own dependencies

from flwr.app import Error, Message
from safetensors.torch import load_file, save_file

import fedkeel as fk
from fedkeel.deploy.arrays import to_array
from fedkeel.deploy.messages import FIELDS
from tests.deploy.test_deploy import N, deploy, fed, impatient, make_grid, model, newest  # noqa: F401


def number(array: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.frombuffer(bytearray(array.data), dtype=dtype)


def set_number(record: str, field: str, place: int, value: float, dtype: torch.dtype = torch.float32) -> Any:
    """Makes a client set one number of its reply."""

    def change(reply: Message) -> Message:
        z = number(reply.content[record][field], dtype)
        z[place] = value
        reply.content[record][field] = to_array(z)
        return reply

    return change


def set_fact(name: str, value: Any) -> Any:
    def change(reply: Message) -> Message:
        reply.content[FIELDS][name] = value
        return reply

    return change


def attacked(fed: fk.Federation, folder: Path, name: str, change: Any, **settings: Any) -> tuple[fk.Run, list[str]]:  # noqa: F811
    """A run in which client 2 sends something else in round 1."""
    grid = make_grid(fed, name, folder)

    def spoil(node: int, reply: Message) -> Message | None:
        trained = not reply.has_error() and "up" in reply.content.array_records
        if node != 102 or not trained or reply.content[FIELDS]["round"] != 1:
            return reply
        changed = change(reply)
        return Message(changed, reply_to=grid.sent[-1]) if isinstance(changed, Error) else changed

    grid.spoil = spoil
    lines: list[str] = []
    return deploy(grid, fed, name, lines, cohort=N, **settings), lines


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("fedlada", set_number("up", "v_hat", 3, -9e7), "v_hat has the number -9e+07; it must be at least 0"),
        ("fafed", set_number("up", "v", 0, -1.0), "v has the number -1; it must be at least 0"),
        ("fednova", set_number("up", "a", 0, 0.0), "a has the number 0; it must be above 0"),
        ("fedavg", set_number("buffers", "values", 8, -1e6, torch.float64), "negative variance or count"),
        ("fedavg", set_number("buffers", "values", 16, -1.0, torch.float64), "negative variance or count"),
        ("fedavg", set_number("buffers", "values", 0, 1e9, torch.float64), "larger than 1e+08"),
        ("fedavg", set_fact("loss", float("inf")), "its loss is inf"),
        ("fedavg", set_fact("junk", "x" * 1000), "which nobody asked for"),
    ],
    ids=["v_hat", "v", "a", "variance", "count", "mean", "loss", "field"],
)
def test_an_impossible_number_drops_its_client(name: str, change: Any, why: str, fed: Any, tmp_path: Path) -> None:  # noqa: F811
    run, _ = attacked(fed, tmp_path, name, change)
    assert list(run.history[1]["faults"]) == ["2"]
    assert why in run.history[1]["faults"]["2"]
    assert [row["dropped"] for row in run.history] == [0, 1, 0, 0], "it takes part again"
    assert torch.isfinite(run.params).all()
    assert all(z.isfinite().all() for z in run.model.state_dict().values())


def test_a_reply_with_too_many_bytes_is_dropped(fed: Any, tmp_path: Path) -> None:  # noqa: F811
    def change(reply: Message) -> Message:
        reply.content["up"]["dx"] = to_array(torch.zeros(10**6))
        return reply

    run, _ = attacked(fed, tmp_path, "fedavg", change)
    assert "4000136 bytes; at most" in run.history[1]["faults"]["2"]


def test_a_bound_on_norms_drops_what_is_much_longer_than_the_rest(fed: Any, tmp_path: Path) -> None:  # noqa: F811
    def change(reply: Message) -> Message:
        reply.content["up"]["dx"] = to_array(100 * number(reply.content["up"]["dx"]))
        return reply

    run, lines = attacked(fed, tmp_path / "bound", "fedavg", change, norm_bound=10)
    assert run.history[1]["faults"]["2"].startswith("TooLong: dx has norm")
    assert any("client 2 is dropped: TooLong" in line for line in lines)
    assert sum(row["dropped"] for row in run.history) == 1
    free, _ = attacked(fed, tmp_path / "free", "fedavg", change)
    assert sum(row["dropped"] for row in free.history) == 0, "it is off by default"


def test_a_cap_on_samples(fed: Any, tmp_path: Path) -> None:  # noqa: F811
    lines: list[str] = []
    with pytest.raises(RuntimeError, match="clients are connected"):
        deploy(make_grid(fed, "fedavg", tmp_path), fed, "fedavg", lines, most_samples=10)
    assert any("samples; 1 to 10 are allowed" in line for line in lines)


@pytest.mark.parametrize("name", ["largest", "most_samples", "norm_bound"])
def test_limits_must_be_positive(name: str, fed: Any, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(ValueError, match=f"{name} = -1 is not allowed"):
        deploy(make_grid(fed, "fedavg", tmp_path), fed, "fedavg", **{name: -1})


def test_a_terminal_sees_no_control_characters(fed: Any, tmp_path: Path) -> None:  # noqa: F811
    def change(reply: Message) -> Error:
        return Error(2, "\x1b[2J\x1b]0;owned\x07 fine\r\nround 9: all is well")

    run, lines = attacked(fed, tmp_path, "fedavg", change)
    shown = "".join([*lines, run.history[1]["faults"]["2"]])
    assert "owned" in shown
    assert shown.isprintable()


def test_an_error_of_a_site_does_not_carry_its_data(
    fed: Any,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from fedkeel.deploy.flower import client_app

    def load_data(context: Any) -> Any:
        raise ValueError("cell 'Jane Doe, born 1970' is not a number")

    grid = make_grid(fed, "fedavg", tmp_path)
    grid.nodes[102] = (client_app(model, load_data, "fedavg"), grid.nodes[102][1])
    lines: list[str] = []
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match=r"missing: \[2\]"):
        deploy(grid, fed, "fedavg", lines)
    assert any(line == "node 102 is not used: ClientFailed: ValueError" for line in lines)
    assert "Jane" not in "".join(lines)
    assert "Jane" in caplog.text, "the site's own log has it"


# The client's memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["NaN", "bit", "negative"])
def test_a_damaged_memory_file_is_not_used(damage: str, fed: Any, tmp_path: Path) -> None:  # noqa: F811
    name = "local-adam" if damage == "negative" else "scaffold"
    grid, out = make_grid(fed, name, tmp_path / "state"), tmp_path / "run"
    deploy(grid, fed, name, cohort=N, out=out, rounds=2)
    (path,) = (tmp_path / "state").glob("*-2.safetensors")
    if damage == "bit":
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    else:
        named = load_file(path)
        for z in named.values():
            z[0] = torch.nan if damage == "NaN" else -1.0
        save_file(named, path, {"format": "fedkeel-client-1"})
    again = make_grid(fed, name, tmp_path / "state")
    run = deploy(again, fed, name, cohort=N, out=out, rounds=3)
    assert run.history[2]["fresh"] == [2]
    assert torch.isfinite(run.params).all()


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_state_folder_that_others_may_write_to_is_refused(fed: Any, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o777)
    lines: list[str] = []
    with pytest.raises(Exception, match="chmod go-w"):
        deploy(make_grid(fed, "scaffold", folder), fed, "scaffold", lines)
    folder.chmod(0o755)
    run = deploy(make_grid(fed, "scaffold", folder), fed, "scaffold", rounds=1)
    assert run.history[0]["dropped"] == 0
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_ranges_hold_in_a_simulation_too(fed: Any) -> None:  # noqa: F811
    """A method whose client 0 uploads a negative second moment."""
    from fedkeel.core.algorithm import registered
    from tests.tasks import small_net

    class Bad(registered["fedlada"]):  # type: ignore[name-defined, misc]
        def client(self, down: Any, mem: Any, steps: Any) -> Any:
            up, new = super().client(down, mem, steps)
            return up._replace(v_hat=up.v_hat - 1), new

    bad = dataclasses.dataclass(frozen=True, kw_only=True)(Bad)(lr=1e-3)
    for engine in ("sequential", "vectorized", "processes"):
        with pytest.raises(fk.RoundError, match=r"v_hat .*must be at least 0"):
            fk.train(small_net(4), fed, bad, rounds=1, cohort=2, engine=engine, progress=False)
