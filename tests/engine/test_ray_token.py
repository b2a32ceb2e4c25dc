"""A stranger on the network cannot join a Ray cluster that fedkeel has started."""
# ruff: noqa: E402

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

from fedkeel.engine.runners.ray import connect

JOIN = """
import logging, os, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
@ray.remote
def work(): return os.getpid()
print("ran as", ray.get(work.remote(), timeout=20))
"""


@pytest.fixture
def cluster() -> Iterator[str]:
    disconnect = connect("local", 1)
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        disconnect()


def joined(address: str, **variables: str) -> Any:
    env = {name: z for name, z in os.environ.items() if not name.startswith("RAY_")} | variables
    return subprocess.run([sys.executable, "-c", JOIN, address], env=env, capture_output=True, text=True, timeout=120)


def test_who_does_not_know_the_token_cannot_join(cluster: str) -> None:
    @ray.remote
    def work() -> int:
        return 3

    assert ray.get(work.remote(), timeout=60) == 3, "the owner can use it"
    stranger = joined(cluster)
    assert stranger.returncode != 0
    assert "ran as" not in stranger.stdout
    assert "AuthenticationError" in stranger.stderr
    guess = joined(cluster, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    assert guess.returncode != 0
    assert "ran as" not in guess.stdout


def test_the_secret_is_forgotten_with_the_cluster() -> None:
    connect("local", 1)()
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert "RAY_AUTH_MODE" not in os.environ
