"""Nodes that return, lie or cannot write, and the log of a run: deployed runs without a network."""
# ruff: noqa: E402

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flwr's own dependencies

from flwr.app import Message
from safetensors.torch import load_file

from fedkeel.cli.app import main
from fedkeel.deploy.local_data import as_federation
from fedkeel.deploy.messages import FIELDS
from tests.deploy.flower_grid import HereGrid
from tests.deploy.test_deploy import N, deploy, fed, impatient, make_grid, simulate  # noqa: F401  (fixtures among them)


class Returning(HereGrid):
    """A grid whose node 102 is connected at the first look, away at the second and third, and then connected again."""

    looks = 0

    def get_node_ids(self) -> Iterable[int]:
        self.looks += 1
        return [node for node in self.nodes if node != 102 or self.looks not in (2, 3)]


def test_a_node_that_restarts_before_its_introduction_is_contacted_again(fed, tmp_path):  # noqa: F811
    grid = Returning(make_grid(fed, "scaffold", tmp_path).nodes)
    hellos: list[int] = []

    def spoil(node: int, reply: Message) -> Message | None:
        if "samples" in reply.content[FIELDS]:
            hellos.append(node)
        return None if hellos.count(102) == 1 and node == 102 else reply  # its first reply is lost because its process ends

    grid.spoil = spoil
    run = deploy(grid, fed, "scaffold", patience=5.0)
    assert hellos.count(102) == 2
    assert torch.equal(run.params, simulate(fed, "scaffold").params)


@pytest.mark.parametrize("samples", [0, -5, 1 << 62])
def test_an_impossible_number_of_samples_is_refused(samples, fed, tmp_path):  # noqa: F811
    grid = make_grid(fed, "fedavg", tmp_path)

    def lie(node: int, reply: Message) -> Message:
        if node == 102 and "samples" in reply.content[FIELDS]:
            reply.content[FIELDS]["samples"] = samples
        return reply

    grid.spoil = lie
    lines: list[str] = []
    with pytest.raises(RuntimeError, match=r"missing: \[2\]"):
        deploy(grid, fed, "fedavg", lines)
    assert any(
        f"node 102 is not used: InvalidMessage: it says that client 2 has {samples} samples" in line for line in lines
    )


def test_nodes_that_become_other_clients_introduce_themselves_again(fed, tmp_path):  # noqa: F811
    """Nodes 102 and 103 swap their clients without being away, so only their error code tells the server."""
    grid = make_grid(fed, "scaffold", tmp_path)

    def swap(node: int, reply: Message) -> Message:
        if node == 103 and reply.has_content() and reply.content[FIELDS].get("round") == 1:
            grid.nodes[102], grid.nodes[103] = grid.nodes[103], grid.nodes[102]
        return reply

    grid.spoil = swap
    run = deploy(grid, fed, "scaffold", cohort=N)
    assert [row["answered"] for row in run.history] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1], [0, 1, 2, 3]]
    assert run.history[2]["faults"]["2"] == "ClientFailed: WrongClient: this node is client 3, not 2"


def test_the_data_of_a_site_have_the_number_of_its_client():
    x, y = torch.arange(5.0), torch.arange(5)
    for client in (0, 3):
        mine = as_federation((x, y), client)
        assert mine.size(client) == 5
        assert torch.equal(mine[client].x, x)
        assert torch.equal(mine.take(client, np.array([4, 1]))[1], y[[4, 1]])


class Unreadable(HereGrid):
    """A grid that cannot read what node 102 answers in round 1, as if its bytes were damaged on their way."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        for one in ids:
            reply = self.replies.get(one)
            if reply and reply.metadata.src_node_id == 102 and reply.content[FIELDS].get("round") == 1:
                if len(ids) == 1:
                    del self.replies[one]
                raise ValueError("Error parsing message")
        return super().pull_messages(ids)


def test_an_answer_that_cannot_be_parsed_harms_no_other(fed, tmp_path):  # noqa: F811
    run = deploy(Unreadable(make_grid(fed, "scaffold", tmp_path).nodes), fed, "scaffold", cohort=N)
    assert [row["answered"] for row in run.history] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert "its answer cannot be read: ValueError: Error parsing message" in run.history[1]["faults"]["2"]


def test_a_client_that_cannot_write_its_record_keeps_the_old_one(fed, tmp_path, monkeypatch):  # noqa: F811
    """The file is replaced as a whole or not at all: the disk is full in round 1."""
    grid, replace, old = make_grid(fed, "scaffold", tmp_path), os.replace, {}

    def full(source: Any, target: Any) -> None:
        rounds = [z.content[FIELDS]["round"] for z in grid.sent if "round" in z.content.config_records.get(FIELDS, {})]
        if Path(target).name.endswith("-2.safetensors") and rounds[-1] == 1:
            old.update(load_file(target))
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    run = deploy(grid, fed, "scaffold", cohort=N, rounds=2)
    assert run.history[1]["answered"] == [0, 1, 3]
    assert run.history[1]["faults"]["2"] == "ClientFailed: StorageError", "paths stay at the site"
    (path,) = tmp_path.glob("*-2.safetensors")
    now = load_file(path)
    assert old.keys() == now.keys()
    assert all(torch.equal(old[name], now[name]) for name in old)
    assert not list(tmp_path.glob("*.part"))


def test_the_log_shows_progress_and_the_report_reads_the_run(fed, tmp_path, capsys):  # noqa: F811
    lines: list[str] = []
    run = deploy(make_grid(fed, "scaffold", tmp_path), fed, "scaffold", lines, out=tmp_path / "run")
    second = next(line for line in lines if line.startswith("round 2/4"))
    row = run.history[1]
    assert f"accuracy {row['test_accuracy']:.4f}" in second
    assert f"answered {' '.join(map(str, row['answered']))}" in second
    assert f"up {row['bytes_up'] / 1e6:.2f} MB, down {row['bytes_down'] / 1e6:.2f} MB" in second
    assert second.endswith(" s")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "run")])
    assert not ended.value.code, capsys.readouterr().err
    page = (tmp_path / "run/report.html").read_text()
    assert "scaffold" in page
    assert "digits" not in page, "the data have no name, so the page must not show the default one"
