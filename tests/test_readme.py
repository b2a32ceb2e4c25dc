"""The first example of the README runs as it is, and its commands and links exist."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import fedkeel as fk
from fedkeel.cli.app import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^fedkeel .*$", TEXT, re.M)


def test_the_first_example_learns(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)
    ended = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout.split()[0]) > 0.5
    assert "fadamgt" in ended.stdout


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_has_options_that_exist(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command = get_command(app)
    while hasattr(command, "commands") and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    hyperparameters = {f"--{field.name}" for name in fk.algorithms() for field in dataclasses.fields(fk.algorithm(name))}
    assert {word for word in words if word.startswith("--")} <= known | hyperparameters


def test_the_readme_counts_the_methods() -> None:
    assert f"a library of {len(fk.algorithms())} methods" in TEXT


def test_links_are_absolute_and_lead_to_files() -> None:
    """PyPI shows the README, too. It knows no relative links."""
    for link in re.findall(r"\]\(([^)#]*)\)", TEXT):
        home = re.fullmatch(
            r"https://(?:github\.com/fedkeel/fedkeel/blob|raw\.githubusercontent\.com/fedkeel/fedkeel)/main/(.+)", link
        )
        assert home, link
        assert (ROOT / home.group(1)).exists(), link
