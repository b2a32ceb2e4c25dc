"""`fedkeel deploy init` writes an app that Flower accepts and that trains what the run trained."""
# ruff: noqa: E402

from __future__ import annotations

import importlib
import json
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flwr's own dependencies

from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict
from safetensors.torch import load_file

from fedkeel.cli.app import main
from fedkeel.deploy import polling
from fedkeel.deploy.flower_config import from_flower
from fedkeel.runs.config import SETTINGS, RunConfig, read, resolve
from fedkeel.runs.from_config import train as run
from tests.deploy.flower_grid import HereGrid, context

TASK = {"clients": 3, "cohort": 2, "rounds": 3, "model": "logistic", "local_steps": 2, "weights": "samples"}


@pytest.fixture
def finished(tmp_path) -> Path:
    run(
        RunConfig(algorithm="fedlada", engine="sequential", hyperparameters={"lr": 0.01}, **TASK),
        tmp_path / "x",
        progress=False,
    )
    return tmp_path / "x"


def cli(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def flat_config(app: Path) -> dict:
    return flatten_dict(tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])


def test_the_config_survives(finished, tmp_path):
    assert cli("deploy", "init", str(tmp_path / "app"), "--from", str(finished)) == 0
    ours, theirs = resolve(from_flower(flat_config(tmp_path / "app"))), read(finished / "config.toml")
    different = {key for key in SETTINGS if getattr(ours, key) != getattr(theirs, key)}
    assert different <= {"engine"}, "what is left out must be at its default"


# The file that `deploy init` of fedkeel 0.1.0 wrote.
OLD_APP = """
from fedkeel.deploy import project

client = project.client_app()
server = project.server_app()
"""


@pytest.mark.parametrize("written_by", ["this version", "0.1.0"])
def test_the_app_trains_what_the_run_trained(written_by, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(polling, "PAUSES", (0.001, 0.01))
    app = tmp_path / "app"
    assert cli("deploy", "init", str(app), "--from", str(finished)) == 0
    if written_by == "0.1.0":
        (app / "fedkeel_app.py").write_text(OLD_APP)
    apps = runpy.run_path(str(app / "fedkeel_app.py"))
    config = flat_config(app)
    nodes = {}
    for i in range(TASK["clients"]):
        where = context(i, tmp_path / "memory")
        where.run_config = config
        nodes[100 + i] = (apps["client"], where)
    grid = HereGrid(nodes)
    here = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    apps["server"](grid, here)
    a, b = load_file(finished / "model.safetensors"), load_file(app / "run/model.safetensors")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert json.loads((app / "run/summary.json").read_text())["engine"] == "flower"
    assert cli("report", str(app / "run")) == 0
    page = (app / "run/report.html").read_text()
    assert "flower" in page
    assert "digits" in page


def test_a_deployed_run_is_not_resumed_as_a_simulation(finished, tmp_path, capsys):
    *lines, _ = (finished / "config.toml").read_text().splitlines(True)  # without the checksum at the end
    (finished / "config.toml").write_text("".join(lines).replace('engine = "sequential"', 'engine = "flower"'))
    assert cli("resume", str(finished)) == 2
    assert "flwr run" in capsys.readouterr().err


def test_nothing_is_overwritten(finished, tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text("mine")
    assert cli("deploy", "init", str(tmp_path), "--from", str(finished)) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "pyproject.toml").read_text() == "mine"
    assert cli("deploy", "init", str(tmp_path / "app"), "--from", str(tmp_path / "nothing")) == 2


def test_without_flwr_an_app_can_be_written_but_not_run(finished, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("flwr", "fedkeel.deploy."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)  # Python raises ImportError for such a module
    importlib.import_module("fedkeel.deploy.project").init(tmp_path / "app", finished)
    with pytest.raises(ImportError, match=r"pip install 'fedkeel\[flower\]'"):
        importlib.import_module("fedkeel.deploy.flower")
