"""Whole runs on a pretended GPU (tests/gpu/pretend.py): every method, the engines, metrics, checkpoints, several devices.

A method that you add is tested here with no further work.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedkeel as fk
from tests.gpu.pretended_runs import cases

ROOT = Path(__file__).parents[2]
CLOSE = 1e-10  # relative, in float64: sums over the clients are added in another order than on the CPU
OTHERS = sorted(set(cases()) - set(fk.algorithms()))

try:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as _  # noqa: F401
except ImportError:
    pytest.skip("this torch cannot register a device that is written in Python", allow_module_level=True)


def run(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.gpu.pretended_runs", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@functools.cache
def results() -> dict[str, Any]:
    """All cases in one process: starting one takes longer than a case."""
    return run()


@pytest.mark.parametrize("name", [*fk.algorithms(), *OTHERS])
def test_the_numbers_are_those_of_the_cpu(name: str) -> None:
    found = results()[name]
    assert found["error"] is None
    assert found["distance"] < CLOSE


@pytest.mark.parametrize("name", fk.algorithms())
def test_what_a_run_returns_is_on_its_device(name: str) -> None:
    assert results()[name]["places"] == ["pretend:0"]


def test_several_devices_are_used() -> None:
    assert results()["devices scaffold"]["engine"] == "devices"


def test_the_old_fault_is_found() -> None:
    """Without the border, client memory of the host meets tensors of the device."""
    found = run("--old-fault", "fedavg", "scaffold", "fadamgt", "moon", "mifa", "padamfed")
    assert found.pop("fedavg")["error"] is None  # its clients keep nothing
    for one in found.values():
        assert any(words in one["error"] for words in ("same device", "incompatible tensor type"))
