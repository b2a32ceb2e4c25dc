"""Keys of sites, policies of sites, the audit log, and the signature of a finished run."""
# ruff: noqa: E402

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flwr's own dependencies

from flwr.app import Message

import fedkeel as fk
from fedkeel.cli import app as cli
from fedkeel.deploy.audit import AuditLog, check_chain
from fedkeel.deploy.messages import FIELDS
from fedkeel.deploy.policy import SitePolicy, read_policy
from fedkeel.deploy.signature import verify
from fedkeel.errors import Damaged
from tests.deploy.flower_grid import HereGrid, context
from tests.deploy.test_deploy import N, deploy, fed, impatient, make_grid  # noqa: F401


def new_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for i in range(N):
        new_key(folder / str(i))
    new_key(folder / "stranger")
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run([*new, "-keyout", "server.key", "-out", "server.crt"], cwd=folder, check=True, capture_output=True)
    return folder


def with_keys(grid: HereGrid, folder: Path, state: Path, names: dict[int, str] | None = None) -> HereGrid:
    """Gives every node a private key, that of its number unless `names` says otherwise."""
    for i in range(N):
        name = (names or {}).get(i, str(i))
        config = {} if name == "none" else {"key": str(folder / name)}
        grid.nodes[100 + i] = (grid.nodes[100 + i][0], context(i, state, **config))
    return grid


# Keys ------------------------------------------------------------------------------------------------------------------


def test_sites_with_their_keys_are_used(fed: Any, keys: Path, tmp_path: Path) -> None:  # noqa: F811
    run = deploy(with_keys(make_grid(fed, "fedavg", tmp_path), keys, tmp_path), fed, "fedavg", site_keys=keys)
    assert all(row["dropped"] == 0 for row in run.history)


@pytest.mark.parametrize("name", ["stranger", "1", "none"])
def test_a_node_with_another_key_cannot_take_the_seat_of_a_client(
    name: str,
    fed: Any,  # noqa: F811
    keys: Path,
    tmp_path: Path,
) -> None:
    grid = with_keys(make_grid(fed, "fedavg", tmp_path), keys, tmp_path, {0: name})
    lines: list[str] = []
    with pytest.raises(RuntimeError, match=r"missing: \[0\]"):
        deploy(grid, fed, "fedavg", lines, site_keys=keys)
    assert any("node 100 is not used" in line and "did not sign with that client's key" in line for line in lines)


def test_a_third_node_cannot_replay_an_introduction(fed: Any, keys: Path, tmp_path: Path) -> None:  # noqa: F811
    """Node 104 sends what node 100 has signed."""
    grid = with_keys(make_grid(fed, "fedavg", tmp_path), keys, tmp_path)
    grid.nodes[104] = grid.nodes[101]
    seen: list[Message] = []

    def replay(node: int, reply: Message) -> Message:
        if "samples" in reply.content[FIELDS]:
            if node == 100:
                seen.append(reply)
            if node == 104:
                reply.content[FIELDS] = seen[0].content[FIELDS]
        return reply

    grid.spoil = replay
    lines: list[str] = []
    run = deploy(grid, fed, "fedavg", lines, site_keys=keys)
    assert any("node 104 is not used" in line for line in lines)
    assert not any("is now node 104" in line for line in lines)
    assert run.history[-1]["dropped"] == 0


def test_a_missing_key_of_a_site_is_named(fed: Any, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(ValueError, match=r"key: cannot read .*0\.pub"):
        deploy(make_grid(fed, "fedavg", tmp_path), fed, "fedavg", site_keys=tmp_path)


# Policies --------------------------------------------------------------------------------------------------------------


def with_policy(grid: HereGrid, folder: Path, text: str) -> HereGrid:
    """Node 102 has a policy."""
    path = folder / f"policy-{abs(hash(text))}.toml"
    path.write_text(text)
    grid.nodes[102] = (grid.nodes[102][0], context(2, folder, policy=str(path)))
    return grid


@pytest.mark.parametrize(
    ("text", "changes", "why"),
    [
        ('methods = ["scaffold"]', {}, "does not allow the method 'fedavg'"),
        ("most_steps = 1", {}, "allows 1 local steps, not 2"),
        ("most_rounds = 2", {}, "allows 2 rounds"),
        ("least_batch_size = 21", {}, "batches of 21 samples or more"),
        ("", {"batch_size": 1}, "batches of 2 samples or more"),
    ],
    ids=["method", "steps", "rounds", "batch", "single sample"],
)
def test_the_server_cannot_ask_for_more_than_a_site_allows(
    text: str,
    changes: dict[str, Any],
    why: str,
    fed: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    from torch import nn

    from fedkeel.deploy.flower import client_app
    from fedkeel.deploy.server import serve

    def plain() -> nn.Module:  # batch normalisation refuses single samples by itself
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    app = client_app(plain, lambda c: (fed[c.node_config["partition-id"]].x, fed[c.node_config["partition-id"]].y), "fedavg")
    grid = with_policy(HereGrid({100 + i: (app, context(i, tmp_path)) for i in range(N)}), tmp_path, text)
    settings = {"rounds": 3, "cohort": N, "local_steps": 2, "batch_size": 20, "timeout": 0.05, "patience": 0.05}
    run = serve(grid, plain, "fedavg", clients=N, log=lambda line: None, **(settings | changes))
    assert "PolicyRefused" in run.history[2]["faults"]["2"]
    assert why in run.history[2]["faults"]["2"]
    assert run.history[2]["answered"] == [0, 1, 3]


def test_names_of_code_are_checked_before_anything_is_imported() -> None:
    good = {"model": "mlp", "data": "digits", "algorithm": "fedavg"}
    policy = SitePolicy(code=("ours.data:load",))
    policy.check_names(good)
    policy.check_names(good | {"data": "ours.data:load"})
    for key in good:
        with pytest.raises(ValueError, match=f"does not allow {key} = 'os:abort'"):
            policy.check_names(good | {key: "os:abort"})
    with pytest.raises(ValueError, match="does not allow the model 'mlp'"):
        SitePolicy(models=("lenet5",)).check_names(good)


@pytest.mark.parametrize("text", ["most_step = 3", "most_steps = 0", 'methods = "fedavg"', "most_steps = true", "[["])
def test_a_policy_with_a_mistake_allows_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="`policy` is wrong"):
        read_policy(str(path))


def test_an_app_from_a_config_obeys_the_policy(tmp_path: Path) -> None:
    from flwr.app import Context, RecordDict

    from fedkeel.deploy.config_app import client_from_config
    from fedkeel.deploy.flower_config import to_flower
    from fedkeel.deploy.messages import Hello
    from fedkeel.runs.config import RunConfig, resolve

    path = tmp_path / "policy.toml"
    path.write_text('models = ["logistic"]')
    config = to_flower(resolve(RunConfig(data="digits", model="mlp", clients=2)), tmp_path)
    flat = {key: z for key, z in config.items() if isinstance(z, str | int | float | bool)}
    where = Context(
        run_id=1, node_id=1, node_config={"partition-id": 0, "policy": str(path)}, state=RecordDict(), run_config=flat
    )
    HereGrid({})  # sets what Flower needs to make a message
    hello = Message(RecordDict({FIELDS: Hello(nonce="0").to_config()}), 1, "query.hello")
    reply = client_from_config()(hello, where)
    assert reply.error.reason == "PolicyRefused: this site does not allow the model 'mlp'"


# Audit log and signature -----------------------------------------------------------------------------------------------


@pytest.fixture
def signed(fed: Any, keys: Path, tmp_path: Path) -> Path:  # noqa: F811
    grid = with_keys(make_grid(fed, "scaffold", tmp_path / "state"), keys, tmp_path / "state")
    deploy(grid, fed, "scaffold", out=tmp_path / "run", rounds=2, site_keys=keys, sign_with=keys / "server.key")
    return tmp_path / "run"


def test_the_audit_log_says_who_replied_what(signed: Path) -> None:
    rows = [json.loads(line) for line in (signed / "audit.jsonl").read_text().splitlines()]
    events = [row["event"] for row in rows]
    assert events[0] == "start"
    assert events[-1] == "end"
    assert events.count("node") == N
    assert events.count("sent") == 2
    assert events.count("reply") == 6
    assert len({row["digest"] for row in rows if row["event"] == "reply"}) == 6


def test_a_resumed_run_goes_on_with_its_log(signed: Path, fed: Any, keys: Path, tmp_path: Path) -> None:  # noqa: F811
    (signed / "audit.jsonl").write_bytes((signed / "audit.jsonl").read_bytes() + b'{"half')
    grid = with_keys(make_grid(fed, "scaffold", tmp_path / "state"), keys, tmp_path / "state")
    deploy(grid, fed, "scaffold", out=signed, rounds=3, site_keys=keys, sign_with=keys / "server.key")
    rows = [json.loads(line) for line in (signed / "audit.jsonl").read_text().splitlines()]
    assert [row["event"] for row in rows].count("end") == 2
    assert verify(signed, keys / "server.crt")


@pytest.mark.parametrize("how", ["change", "remove", "swap", "insert"])
def test_a_changed_audit_log_is_noticed(how: str, tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    for number in range(5):
        log.add("reply", client=number)
    assert check_chain(log.path) == (log.last, 5)
    lines = log.path.read_text().splitlines()
    if how == "change":
        lines[2] = lines[2].replace('"client": 2', '"client": 3')
    elif how == "remove":
        del lines[1]
    elif how == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines.insert(1, lines[1])
    log.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(Damaged, match="is damaged: line"):
        AuditLog(tmp_path)


def exit_code(*words: str) -> Any:
    with pytest.raises(SystemExit) as end:
        cli.main(["verify", *words])
    return end.value.code


def test_verify(signed: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(str(signed), "--key", str(keys / "server.crt")) == 0
    assert "5 files are as they were signed" in capsys.readouterr().out
    assert exit_code(str(signed)) == 0
    assert "nobody vouches for" in capsys.readouterr().out
    assert exit_code(str(signed), "--key", str(keys / "stranger.pub")) == 1
    assert "was not signed with the key" in capsys.readouterr().err
    assert exit_code(str(signed / "nothing")) == 2
    assert exit_code(str(signed), "--key", str(signed / "summary.json")) == 2


@pytest.mark.parametrize("name", ["model.safetensors", "summary.json", "metrics.jsonl", "config.toml", "audit.jsonl"])
def test_a_signed_file_that_was_changed_is_named(signed: Path, keys: Path, name: str) -> None:
    content = bytearray((signed / name).read_bytes())
    content[len(content) // 2] ^= 1
    (signed / name).write_bytes(content)
    with pytest.raises(Damaged, match=f"{name} is not what the server signed"):
        verify(signed, keys / "server.crt")
    (signed / name).unlink()
    with pytest.raises(Damaged, match=f"{name} is missing"):
        verify(signed, keys / "server.crt")


def test_a_signature_of_somebody_else_is_noticed(signed: Path, keys: Path, fed: fk.Federation) -> None:  # noqa: F811
    from fedkeel.deploy.signature import write_signature

    write_signature(signed, keys / "stranger")
    verify(signed)
    with pytest.raises(Damaged, match="was not signed with the key"):
        verify(signed, keys / "server.crt")
