"""The commands in docs/deploy.md work, and its picture is current."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra [flower] is not installed")

from safetensors.torch import load_file

import fedkeel as fk
from fedkeel.deploy.picture import drawing
from tests.deploy.flower_network import BIN, environment, free_port, wait_for

DOCS = Path(__file__).parents[2] / "docs"
STARTED = {"flower-superlink": "Uvicorn running", "for i in 0 1; do flower-supernode": "SuperNode ID"}


def test_the_picture_is_current():
    assert (DOCS / "deploy.svg").read_text() == drawing(fk.algorithm("scaffold")), (
        "fedkeel deploy picture scaffold > docs/deploy.svg"
    )


@pytest.mark.parametrize("name", fk.algorithms())
def test_every_method_can_be_drawn(name):
    drawn = drawing(fk.algorithm(name))
    assert "x [d]" in drawn
    assert drawn.count("<text") > 8


@pytest.mark.parametrize(("name", "words"), [("fedavg", "1 d floats down, 1 d up"), ("mime", "3 d floats down, 2 d up")])
def test_the_picture_counts_what_is_sent_before_the_steps_too(name, words):
    assert words in drawing(fk.algorithm(name))


def has_started(log: Path, sign: str, count: int) -> bool:
    """Does the log hold the sign that a program has started, once for each of them?"""
    return log.read_text().count(sign) >= count


def commands(page: str) -> list[str]:
    """The commands of the numbered list."""
    part = page.partition("## Ten commands")[2].partition("\n## ")[0]
    return [command.strip() for command in re.findall(r"^ *```\n(.*?)^ *```$", part, re.DOTALL | re.MULTILINE)][:10]


def test_the_page_has_ten_commands():
    found = commands((DOCS / "deploy.md").read_text())
    assert len(found) == 10
    assert all("\n" not in command for command in found)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_ten_commands_lead_to_the_bits_of_the_simulation(tmp_path):
    page = (DOCS / "deploy.md").read_text()
    settings = re.search(r"^export .*$", page, re.MULTILINE).group()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fedkeel").write_text(
        f"#!/bin/sh\nexec {BIN / 'python'} -c 'from fedkeel.cli.app import main; main()' \"$@\"\n"
    )
    (tmp_path / "bin/fedkeel").chmod(0o755)
    env = environment(tmp_path / "flwr")
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
    link, nodes = str(free_port()), str(free_port())[:-1]
    running = []
    try:
        for number, command in enumerate(commands(page)):
            text = f"{settings}\n{command}".replace("8800", link).replace("--port 890$i", f"--port {nodes}$i")
            log = tmp_path / f"{number}.log"
            with open(log, "wb") as file:
                process = subprocess.Popen(
                    ["bash", "-ec", f"{text}\nwait"], cwd=tmp_path, env=env, stdout=file, stderr=file, start_new_session=True
                )
            if sign := next((sign for start, sign in STARTED.items() if command.startswith(start)), None):
                running.append(process)
                count = 2 if "for i" in command else 1
                started = partial(has_started, log, sign, count)
                wait_for(started, 120, f"{command} does not start:\n{log.read_text()}")
            else:
                assert process.wait(timeout=900) == 0, f"{command}\n{log.read_text()}"
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=30)
    assert json.loads((tmp_path / "9.log").read_text())["rounds"] == 3
    here, there = (load_file(tmp_path / run / "model.safetensors") for run in ("runs/chosen", "app/run"))
    assert all((here[name] == there[name]).all() for name in here)
