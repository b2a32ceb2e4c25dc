"""Deployed runs without a network: Flower's messages and apps, all in this process."""
# ruff: noqa: E402

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flwr's own dependencies

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from safetensors.torch import load_file
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.deploy import polling, privacy
from fedkeel.deploy.arrays import RAW, to_array, to_arrays, to_record, to_tensor
from fedkeel.deploy.errors import InvalidMessage
from fedkeel.deploy.flower import client_app
from fedkeel.deploy.messages import FIELDS
from fedkeel.deploy.server import serve
from fedkeel.engine.state import directory
from tests.deploy.flower_grid import HereGrid, context

N = 4
SETTINGS: dict[str, Any] = {"rounds": 4, "cohort": 3, "local_steps": 2, "batch_size": 20, "seed": 3, "lr_decay": 0.9}
SIX = ["fedavg", "scaffold", "fedlada", "fadamgt", "padamfed", "gradma"]


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


@pytest.fixture(scope="module")
def fed() -> fk.Federation:
    return fk.load("digits").split("dirichlet_per_class", clients=N, concentration=0.5, seed=0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(polling, "PAUSES", (0.001, 0.01))


def make_grid(fed: fk.Federation, algorithm: Any, folder: Path, **options: Any) -> HereGrid:
    def load_data(context: Any) -> tuple[Tensor, Tensor]:
        own = fed[context.node_config["partition-id"]]
        return own.x, own.y

    apps = [client_app(model, load_data, algorithm, **options) for _ in range(N)]
    return HereGrid({100 + i: (app, context(i, folder)) for i, app in enumerate(apps)})


def deploy(grid: HereGrid, fed: fk.Federation, algorithm: Any, lines: list[str] | None = None, **changes: Any) -> fk.Run:
    options = {"out": None, "timeout": 0.05, "patience": 0.05, "largest": 1e8, **SETTINGS, **changes}
    log = (lines if lines is not None else []).append
    return serve(grid, model, algorithm, clients=N, test=fed.test, log=log, **options)


def simulate(fed: fk.Federation, algorithm: Any, **changes: Any) -> fk.Run:
    return fk.train(model, fed, algorithm, engine="sequential", progress=False, **(SETTINGS | changes))


def tuned(name: str) -> fk.Algorithm:
    """The method, set up for rounds with partial participation."""
    fields = fk.algorithm(name).__dataclass_fields__
    return fk.algorithm(name, **({"allow_partial": True} if "allow_partial" in fields else {}))


# The same run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SIX, "mime", "mifa"])
def test_a_deployed_run_has_the_bits_of_the_simulator(name, fed, tmp_path):
    check_same(name, fed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", fk.algorithms())
def test_every_method_deployed_has_the_bits_of_the_simulator(name, fed, tmp_path):
    check_same(name, fed, tmp_path)


def check_same(name, fed, folder):
    algo = tuned(name)
    weights = "uniform" if algo.facts.uniform else "samples"
    here, there = simulate(fed, algo, weights=weights), deploy(make_grid(fed, name, folder), fed, algo, weights=weights)
    assert torch.equal(here.params, there.params)
    for ours, theirs in zip(here.server, there.server, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(here.history, there.history, strict=True):
        assert ours["train_loss"] == theirs["train_loss"]
        assert ours["up"] == theirs["up"]
        if name != "fedbn":  # whose layers stay with the clients, so the server cannot test with them
            assert ours["test_accuracy"] == theirs["test_accuracy"]


def test_epochs_follow_the_sizes_that_clients_report(fed, tmp_path):
    changes = {"local_steps": None, "local_epochs": 1, "weights": "samples"}
    here = simulate(fed, "fedavg", **changes)
    there = deploy(make_grid(fed, "fedavg", tmp_path), fed, "fedavg", **changes)
    assert torch.equal(here.params, there.params)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbn"])
def test_validation_at_the_sites_finds_what_the_simulator_finds(name, fed, tmp_path):
    changes = {"validation": 0.25, "evaluate_on": "clients", "evaluate_every": 2, "lr_schedule": "cosine"}
    here = simulate(fed, name, **changes)
    there = deploy(make_grid(fed, name, tmp_path), fed, name, **changes)
    assert torch.equal(here.params, there.params)  # so the sites held out the same samples
    for ours, theirs in zip(here.history, there.history, strict=True):
        measured = [key for key in ours if key.startswith(("val_", "clients_"))]
        assert len(measured) == (10 if ours["round"] % 2 else 2)
        for key in measured:
            if name == "fedbn" and key.startswith("val_"):
                continue  # its layers stay with the clients, and the simulator takes their mean
            assert theirs[key] == (ours[key] and pytest.approx(ours[key], rel=1e-5, abs=1e-6))
    assert there.history[-1]["val_clients"] == N
    assert there.best_round == here.best_round or name == "fedbn"
    assert there.history[-1]["bytes_down"] > there.history[-2]["bytes_down"]


def test_a_deployed_run_can_be_opened(fed, tmp_path):
    run = deploy(make_grid(fed, "scaffold", tmp_path), fed, "scaffold", out=tmp_path / "run", validation=0.2)
    opened = fk.open(tmp_path / "run")
    assert torch.equal(opened.params, run.params)
    assert opened.best_round == run.best_round
    assert len(opened.clients) == N
    assert opened.clients[0] is None  # the records stay with the clients


def test_sites_that_send_no_scores_are_left_out_of_the_validation(fed, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.deploy.test_deploy.model", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    grid, lines = make_grid(fed, "fedavg", tmp_path), []

    def spoil(node, reply):
        if reply.metadata.message_type != "evaluate" or node > 101:
            return reply
        if node == 100:
            reply.content[FIELDS]["accuracy"] = 1.5
            return reply
        return Message(Error(code=99, reason="no scores today"), reply_to=grid.sent[-1])

    grid.spoil = spoil
    run = deploy(grid, fed, "fedavg", lines, validation=0.25, cohort=N)
    assert [row["val_clients"] for row in run.history] == [N - 2] * 4
    assert run.history[-1]["dropped"] == 0
    assert any("client 0 sends no scores" in line and "between 0 and 1" in line for line in lines)
    assert any("client 1 sends no scores" in line and "no scores today" in line for line in lines)
    noisy = make_grid(fed, "fedavg", tmp_path, mods=[LocalDpMod(1.0, 0.0, 1.0, 1e-5)])
    assert deploy(noisy, fed, "fedavg", lines, validation=0.25, cohort=N).history[-1]["val_clients"] == 0
    assert any("adds noise to what it sends" in line for line in lines)


def test_only_tracking_clients_send_their_tracking_variable(fed, tmp_path):
    algo = fk.algorithm("fadamgt", tracking=1)
    grid = make_grid(fed, algo, tmp_path)
    sent = []
    grid.spoil = lambda node, reply: sent.append(sorted(reply.content.array_records.get("up", {}))) or reply
    run = deploy(grid, fed, algo)
    rounds = [fields for fields in sent if fields]
    assert rounds.count(["dx", "dy"]) == SETTINGS["rounds"]
    assert len(rounds) == 3 * SETTINGS["rounds"]
    statistics = 8 * (8 + 8 + 1)  # bytes of mean, variance and count of 8 features, in float64
    assert run.history[0]["bytes_up"] == 3 * (4 * run.history[0]["up"] + statistics)
    assert torch.equal(run.params, simulate(fed, algo).params)


def test_the_run_directory_is_that_of_a_run(fed, tmp_path):
    out = tmp_path / "run"
    run = deploy(make_grid(fed, "scaffold", tmp_path), fed, "scaffold", out=out)
    rows = directory.history(out)
    assert rows == json.loads(json.dumps(run.history))
    assert rows[0]["answered"] == [int(i) for i in run.history[0]["answered"]]
    assert rows[0]["bytes_down"] > 0
    assert json.loads((out / "summary.json").read_text())["engine"] == "flower"
    assert not (out / "clients.bin").exists(), "client memory must not be on the server"
    assert (out / "config.toml").exists()
    assert (out / "model.safetensors").exists()
    again = deploy(HereGrid({}), fed, "scaffold", out=out)  # complete: no client gets a message
    assert torch.equal(again.params, run.params)


# Records on the wire --------------------------------------------------------------------------------------------------


class Up(NamedTuple):
    dx: Tensor
    empty: Tensor
    one: Tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_records_survive_the_wire(dtype):
    record = Up(torch.randn(3, 2).to(dtype), torch.zeros(0, dtype=dtype), torch.tensor(-0.0).to(dtype))
    arrays = to_arrays(record)
    assert set(arrays) == {"dx", "one"}
    assert arrays["dx"].stype == RAW
    assert len(arrays["dx"].data) == 6 * record.dx.element_size(), "raw numbers and nothing else"
    back = to_record(arrays, record)
    assert all(torch.equal(a, b) and a.dtype == b.dtype and a.shape == b.shape for a, b in zip(record, back, strict=True))
    assert torch.signbit(back.one.float())


def spoiled(content: RecordDict, how: str) -> None:
    """Changes a reply as a broken or hostile client might."""
    facts, up = content.config_records[FIELDS], content.array_records["up"]
    dx = up["dx"]
    z = torch.frombuffer(bytearray(dx.data), dtype=torch.float32)
    if how in ("run", "stage"):
        facts[how] = "0" * 32
    elif how in ("round", "client"):
        facts[how] = facts[how] + 1
    elif how == "schema":
        facts["schema"] = 1
    elif how == "no facts":
        del content[FIELDS]
    elif how == "type":
        facts["loss"] = "low"
    elif how == "NaN":
        z[7] = torch.nan
        up["dx"] = to_array(z)
    elif how == "infinite":
        z[7] = -torch.inf
        up["dx"] = to_array(z)
    elif how == "huge":
        z[7] = 1e30
        up["dx"] = to_array(z)
    elif how == "shape":
        up["dx"] = to_array(z[:-1])
    elif how == "two rows":
        up["dx"] = to_array(z.reshape(2, -1))
    elif how == "dtype":
        up["dx"] = to_array(z.double())
    elif how == "name":
        up["dw"] = up.pop("dx")
    elif how == "more":
        up["extra"] = to_array(z)
    elif how == "bytes":
        up["dx"] = Array(dtype="float32", shape=dx.shape, stype=RAW, data=b"\x93garbage" * 10)
    elif how == "pickle":
        up["dx"] = Array(dtype="float32", shape=dx.shape, stype="pickle", data=dx.data)
    elif how == "buffers":
        content["buffers"] = ArrayRecord()
    elif how == "nothing":
        del content["up"]


WAYS = [
    *("run", "stage", "round", "client", "schema", "no facts", "type", "NaN", "infinite", "huge", "shape", "two rows"),
    *("dtype", "name", "more", "bytes", "pickle", "buffers", "nothing", "error", "silence"),
]


@pytest.mark.parametrize("how", WAYS)
def test_a_bad_answer_is_dropped_and_named_and_the_round_goes_on(how, fed, tmp_path):
    grid = make_grid(fed, "scaffold", tmp_path)

    def spoil(node: int, reply: Message) -> Message | None:
        if node != 102 or "up" not in reply.content.array_records or reply.content[FIELDS]["round"] != 1:
            return reply
        if how == "error":
            return Message(Error(2, "ZeroDivisionError: division by zero"), reply_to=grid.sent[-1])
        if how == "silence":
            return None
        spoiled(reply.content, how)
        return reply

    grid.spoil = spoil
    lines: list[str] = []
    run = deploy(grid, fed, "scaffold", lines, cohort=N)
    row = run.history[1]
    assert row["dropped"] == 1
    assert list(row["faults"]) == ["2"]
    assert row["answered"] == [0, 1, 3]
    assert any("round 1: client 2 is dropped" in line for line in lines)
    assert all(run.history[t]["dropped"] == 0 for t in (0, 2, 3))
    assert torch.isfinite(run.params).all()
    # The client starts from the record that the server expects, so c stays the mean of the clients' c.
    records = [newest(tmp_path, i) for i in range(N)]
    assert torch.allclose(run.server.c, torch.stack(records).mean(0), atol=1e-6)


def newest(folder: Path, client: int) -> Tensor:
    (path,) = folder.glob(f"*-{client}.safetensors")
    named = load_file(path)
    return named[max(named, key=lambda name: int(name.partition(".")[0]))]


def test_a_request_of_another_schema_run_or_method_is_refused_by_the_client(fed, tmp_path):
    grid = make_grid(fed, "fedavg", tmp_path)
    deploy(grid, fed, "fedavg", rounds=1)
    app, where = grid.nodes[100]
    order = next(z for z in grid.sent if z.metadata.dst_node_id == 100 and "down" in z.content.array_records)

    def reason(**changes: Any) -> str:
        content = RecordDict({FIELDS: ConfigRecord({**order.content[FIELDS], **changes}), "down": order.content["down"]})
        content["buffers"] = order.content["buffers"]
        message = Message(content, 100, "train")
        message.metadata.__dict__["_message_id"] = "x"
        reply = app(message, where)
        return reply.error.reason if reply.has_error() else "accepted"

    assert reason() == "accepted"
    assert "schema 7 is unknown here" in reason(schema=7)
    assert "this node is client 0, not 1" in reason(client=1)
    assert "not a request" in reason(run="../../etc/passwd")
    assert "not a request" in reason(stage="__init__")
    assert "set up for fedavg" in reason(
        task=json.dumps(json.loads(order.content[FIELDS]["task"]) | {"algorithm": "fedprox"})
    )
    assert "cannot be read" in reason(task="{}")


def test_a_client_whose_initial_record_differs_is_refused(fed, tmp_path):
    """The first record of GradMA's clients contains the initial model, so all clients must make the same model."""
    grid = make_grid(fed, "gradma", tmp_path)
    node = grid.nodes[101][0]._registered_funcs["train.default"].__self__
    torch.manual_seed(1)
    node.model = model()
    run = deploy(grid, fed, "gradma", cohort=N, rounds=1)
    assert "record of a new client" in run.history[0]["faults"]["1"]


# Faults, restarts, resume ---------------------------------------------------------------------------------------------


def test_a_run_in_which_all_clients_fail_is_a_failed_run(fed, tmp_path):
    grid = make_grid(fed, "fedavg", tmp_path)
    grid.spoil = lambda node, reply: reply if "up" not in reply.content.array_records else None
    with pytest.raises(fk.RoundError, match="0 of 3 clients answered"):
        deploy(grid, fed, "fedavg", out=tmp_path / "run")
    assert not (tmp_path / "run/summary.json").exists()


@pytest.mark.parametrize("name", ["scaffold", "padamfed"])
def test_a_server_that_stopped_resumes_with_the_same_bits(name, fed, tmp_path):
    grid = make_grid(fed, name, tmp_path)
    grid.spoil = lambda node, reply: None if reply.has_content() and reply.content[FIELDS].get("round") == 2 else reply
    with pytest.raises(fk.RoundError, match="min_clients is 2"):
        deploy(grid, fed, name, out=tmp_path / "run", min_clients=2)
    for node, (app, _) in list(grid.nodes.items()):  # another run of Flower: its Contexts are empty
        grid.nodes[node] = (app, context(node - 100, tmp_path))
    grid.spoil = lambda node, reply: reply
    run = deploy(grid, fed, name, out=tmp_path / "run", min_clients=2)
    assert torch.equal(run.params, simulate(fed, name).params)
    assert [row["round"] for row in run.history] == [0, 1, 2, 3]


def test_if_too_few_clients_reply_the_others_get_another_request(fed, tmp_path):
    grid = make_grid(fed, "scaffold", tmp_path)
    lost: set[tuple[int, int]] = set()

    def spoil(node: int, reply: Message) -> Message | None:
        key = (node, reply.content[FIELDS].get("round", -1))
        if key[1] != 1 or key in lost:
            return reply
        lost.add(key)
        return None

    grid.spoil = spoil
    run = deploy(grid, fed, "scaffold", min_clients=3, patience=1.0)
    assert len(lost) == 3
    assert torch.equal(run.params, simulate(fed, "scaffold").params)
    assert [row["dropped"] for row in run.history] == [0, 0, 0, 0]


@pytest.mark.parametrize("memory", ["kept", "gone", "damaged"])
def test_a_node_that_restarts_comes_back_with_its_record_or_as_a_new_client(memory, fed, tmp_path):
    grid = make_grid(fed, "scaffold", tmp_path)

    def restart(node: int, reply: Message) -> Message:
        if node == 101 and reply.content[FIELDS].get("round") == 1:
            grid.nodes[101] = (make_grid(fed, "scaffold", tmp_path).nodes[101][0], context(1, tmp_path))
            (path,) = tmp_path.glob("*-1.safetensors")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            if memory == "gone":
                path.unlink()
            elif memory == "damaged":
                path.write_bytes(path.read_bytes()[:-9])
        return reply

    grid.spoil = restart
    lines: list[str] = []
    run = deploy(grid, fed, "scaffold", lines, cohort=N)
    if memory == "kept":
        assert torch.equal(run.params, simulate(fed, "scaffold", cohort=N).params)
        assert run.history[2]["fresh"] == []
    else:
        assert run.history[2]["fresh"] == [1]
        assert any("begins as a new client" in line for line in lines)
        assert torch.isfinite(run.params).all()


def test_a_node_that_leaves_is_dropped_and_one_that_joins_takes_its_place(fed, tmp_path):
    grid = make_grid(fed, "scaffold", tmp_path)

    def moves(node: int, reply: Message) -> Message:
        t = reply.content[FIELDS].get("round")
        if t == 1 and node == 103:
            grid.nodes.pop(103)
        if t == 2 and 203 not in grid.nodes:
            grid.nodes[203] = make_grid(fed, "scaffold", tmp_path).nodes[103]  # another node, the same client and file
        return reply

    grid.spoil = moves
    run = deploy(grid, fed, "scaffold", cohort=N)
    assert [row["faults"].get("3", "")[:12] for row in run.history] == ["", "", "NotConnected", ""]
    assert run.history[3]["fresh"] == []


def test_a_run_waits_for_all_clients_and_names_missing_ones(fed, tmp_path):
    grid = make_grid(fed, "fedavg", tmp_path)
    grid.nodes[102] = (grid.nodes[102][0], context(1, tmp_path))  # two nodes with one number
    lines: list[str] = []
    with pytest.raises(RuntimeError, match=r"3 of 4 clients are connected after 0\.05 s; missing: \[2\]"):
        deploy(grid, fed, "fedavg", lines)
    assert any("is now node" in line for line in lines) or any("samples" in line for line in lines)


def test_a_node_without_a_number_is_not_used(fed, tmp_path):
    grid = make_grid(fed, "fedavg", tmp_path)
    grid.nodes[102][1].node_config.pop("partition-id")
    lines: list[str] = []
    with pytest.raises(RuntimeError, match=r"missing: \[2\]"):
        deploy(grid, fed, "fedavg", lines)
    assert any("node 102 is not used" in line and "partition-id" in line for line in lines)


# Privacy --------------------------------------------------------------------------------------------------------------


def test_which_methods_need_only_sums():
    each = {name for name in fk.algorithms() if privacy.why_sums_are_not_enough(tuned(name))}
    assert each == {"fafed", "fedcams", "fednova", "gradma", "gradma-s"}


def test_a_survey_in_a_later_round_is_checked_too():
    class Gradient(NamedTuple):
        g: Tensor

    class Sometimes(type(fk.algorithm("fedavg"))):
        def surveys(self, t=0):
            return t % 2 == 1

        def survey(self, down, mem, steps):
            return Gradient(steps.full_grad(down.x)), mem

        def survey_server(self, s, up, r):
            return s._replace(x=s.x + r.avg(up.g))

    assert privacy.why_noise_is_not_allowed(fk.algorithm("fedavg")) is None
    assert "gradients" in privacy.why_noise_is_not_allowed(Sometimes())


def test_modifiers_are_refused_with_a_reason(fed, tmp_path):
    noise = LocalDpMod(1.0, 1.0, 1.0, 1e-5)
    for name, why in [
        ("gradma-s", "weighted sums"),
        ("scaffold", "dx and dc"),
        ("feddyn", "records"),
        ("mime", "gradients"),
        ("domo", "dz"),
    ]:
        with pytest.raises(ValueError, match=f"LocalDpMod is not valid for {name}: .*{why}"):
            make_grid(fed, name, tmp_path, mods=[noise])
    with pytest.raises(ValueError, match="not a Flower strategy"):
        make_grid(fed, "fedavg", tmp_path, mods=[fixedclipping_mod])

    def secaggplus_mod(*_: Any) -> None: ...  # a copy of the name: Flower may move its function in the next release

    for name, why in [("fednova", "not just at their weighted sums"), ("fedavg", "older strategies only")]:
        with pytest.raises(ValueError, match=f"secaggplus_mod is not valid for {name}: .*{why}"):
            make_grid(fed, name, tmp_path, mods=[secaggplus_mod])
    with pytest.raises(ValueError, match="function is not known to leave uploads as they are"):
        make_grid(fed, "fedavg", tmp_path, mods=[type("Mod", (), {"__name__": "function"})()])


def test_local_differential_privacy_clips_what_a_client_sends(fed, tmp_path, monkeypatch):
    quiet = LocalDpMod(clipping_norm=1e-2, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    plain = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # noqa: E731
    monkeypatch.setattr("tests.deploy.test_deploy.model", plain)
    grid = make_grid(fed, "fedavg", tmp_path, mods=[quiet])
    norms = []

    def look(node: int, reply: Message) -> Message:
        if "up" in reply.content.array_records:
            dx = torch.frombuffer(bytearray(reply.content["up"]["dx"].data), dtype=torch.float32)
            norms.append(float(dx.norm()))
            assert reply.content[FIELDS]["loss"] != reply.content[FIELDS]["loss"], (
                "a loss would reveal something about the data"
            )
        return reply

    grid.spoil = look
    deploy(grid, fed, "fedavg")
    assert len(norms) == 3 * SETTINGS["rounds"]
    assert all(0.9e-2 < z < 1.1e-2 for z in norms)


def test_an_invalid_message_says_what_was_expected():
    with pytest.raises(InvalidMessage, match=r"dx is float64 \[3\], not float32 \[3\]"):
        to_tensor(to_array(torch.zeros(3).double()), torch.zeros(3), "dx")
