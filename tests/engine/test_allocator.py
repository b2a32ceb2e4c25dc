"""The allocator's setting, and how to switch it off."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from fedkeel.engine.machine import ALLOCATOR_OPTIONS, keep_freed_memory


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The arguments of all calls of mallopt."""
    made: list[tuple[int, int]] = []
    libc = SimpleNamespace(mallopt=lambda option, value: made.append((option, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has mallopt")
@pytest.mark.parametrize("value", [None, "1"])
def test_the_allocator_keeps_memory(
    calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("FEDKEEL_MALLOPT", raising=False)
    if value is not None:
        monkeypatch.setenv("FEDKEEL_MALLOPT", value)
    keep_freed_memory()
    assert dict(calls) == ALLOCATOR_OPTIONS


def test_an_environment_variable_keeps_the_allocator_unchanged(
    calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDKEEL_MALLOPT", "0")
    keep_freed_memory()
    assert calls == []
