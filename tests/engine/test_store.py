"""Client memory against a dictionary: no order of staging, committing and discarding loses a needed record."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

import fedkeel as fk
from fedkeel.engine.machine import forget_peak, peak_memory
from fedkeel.engine.state.store import Store
from fedkeel.errors import StorageError

N, S = 5, 3


class Memory(NamedTuple):
    a: Tensor
    empty: Tensor
    count: Tensor


def record(value: int) -> Memory:
    return Memory(torch.full((5,), float(value)), torch.zeros(0), torch.tensor(value))


def value(memory: Memory) -> int:
    assert memory.a.tolist() == [float(memory.count)] * 5
    return int(memory.count)


class StoreMachine(RuleBasedStateMachine):
    """The store, a dictionary of the clients' current records, and a dictionary of those in the last checkpoint."""

    @initialize(on_disk=st.booleans())
    def start(self, on_disk: bool) -> None:
        self.path = self.fresh_path() if on_disk else None
        self.store = Store(record(-1), N, S, self.path)
        self.held: dict[int, int] = {}
        self.staged: dict[int, tuple[int, int]] = {}  # client -> (slot, value)
        self.saved, self.index = {}, self.store.index()
        self.store.pin()
        self.written = 0

    def fresh_path(self) -> Path:
        self.folder = tempfile.TemporaryDirectory()
        return Path(self.folder.name) / "clients.bin"

    def teardown(self) -> None:
        if getattr(self, "path", None) is not None:
            self.folder.cleanup()

    @precondition(lambda self: not self.staged)
    @rule(clients=st.sets(st.integers(0, N - 1), min_size=1, max_size=S))
    def stage(self, clients: set[int]) -> None:
        for client in clients:
            slot = self.store.stage()
            self.written += 1
            self.store.write(slot, record(self.written))
            self.staged[client] = (slot, self.written)

    @precondition(lambda self: self.staged)
    @rule(failed=st.sets(st.integers(0, N - 1), max_size=1))
    def end_of_round(self, failed: set[int]) -> None:
        for client, (slot, written) in self.staged.items():
            if client in failed:
                self.store.discard(slot)
            else:
                self.store.commit(client, slot)
                self.held[client] = written
        self.staged = {}

    @precondition(lambda self: not self.staged)
    @rule()
    def checkpoint(self) -> None:
        self.saved, self.index = dict(self.held), self.store.index()
        self.store.pin()

    @precondition(lambda self: not self.staged)
    @rule()
    def checkpoint_that_fails(self) -> None:
        """The index was taken but never reached the disk, so the last checkpoint still counts."""
        self.store.index()

    @rule()
    def kill_and_resume(self) -> None:
        if self.path is not None:
            self.store = Store(record(-1), N, S, self.path)
        self.store.restore(self.index)
        self.held, self.staged = dict(self.saved), {}

    @invariant()
    def clients_hold_what_they_should(self) -> None:
        for client in range(N):
            assert (client in self.store) == (client in self.held)
            assert value(self.store.read(client)) == self.held.get(client, -1)

    @invariant()
    def what_was_staged_is_untouched(self) -> None:
        for slot, written in self.staged.values():
            assert value(self.store.slot_record(slot)) == written

    @invariant()
    def the_last_checkpoint_is_whole(self) -> None:
        clients, slots = self.index["store.clients"].tolist(), self.index["store.slots"].tolist()
        assert {c: value(self.store.slot_record(slot)) for c, slot in zip(clients, slots, strict=True)} == self.saved

    @invariant()
    def slots_are_not_lost(self) -> None:
        """Every slot is live, staged, needed by the checkpoint or free, and there are no more slots than needed."""
        staged = {slot for slot, _ in self.staged.values()}
        known = set(self.store.live.values()) | staged | self.store.pinned | set(self.store.free)
        assert known >= set(range(self.store.fresh))
        assert len(self.store.free) == len(set(self.store.free))
        assert not set(self.store.free) & (set(self.store.live.values()) | staged | self.store.pinned)
        assert self.store.fresh <= 3 * N + S


StoreMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestStore = StoreMachine.TestCase


@given(
    plan=st.lists(st.lists(st.integers(0, N - 1), min_size=1, max_size=S, unique=True), max_size=30), every=st.integers(1, 4)
)
@settings(max_examples=60, deadline=None)
def test_rounds_with_rare_checkpoints_stay_within_the_reserved_space(plan: list[list[int]], every: int) -> None:
    store = Store(record(-1), N, S)
    for t, cohort in enumerate(plan):
        slots = [store.stage() for _ in cohort]
        for client, slot in zip(cohort, slots, strict=True):
            store.write(slot, record(t))
            store.commit(client, slot)
        if t % every == 0:
            store.pin()
    last = {client: t for t, cohort in enumerate(plan) for client in cohort}
    assert {client: value(store.read(client)) for client in last} == last


def saved_store(path: Path) -> dict[str, Tensor]:
    store = Store(record(-1), N, S, path)
    for client in (4, 1):
        slot = store.stage()
        store.write(slot, record(client))
        store.commit(client, slot)
    return store.index()


def test_a_new_file_reads_what_the_old_one_wrote(tmp_path: Path) -> None:
    index = saved_store(tmp_path / "clients.bin")
    store = Store(record(-1), N, S, tmp_path / "clients.bin")
    store.restore(index)
    assert [value(store.read(client)) for client in (1, 4, 0)] == [1, 4, -1]


@pytest.mark.parametrize("damage", ["deleted", "replaced", "cut", "emptied"])
def test_a_foreign_file_is_not_used_as_client_memory(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "clients.bin"
    index = saved_store(path)
    content = path.read_bytes()
    if damage in ("deleted", "replaced"):
        path.unlink()
    if damage == "replaced":
        saved_store(path)
    if damage in ("cut", "emptied"):
        path.write_bytes(content[:100] if damage == "cut" else b"")
    for _ in range(2):  # the first attempt must not make the second attempt succeed
        with pytest.raises(ValueError, match=r"clients\.bin is not the client memory"):
            Store(record(-1), N, S, path).restore(index)
    path.write_bytes(content)
    store = Store(record(-1), N, S, path)
    store.restore(index)
    assert value(store.read(4)) == 4


def test_a_run_with_other_records_does_not_touch_the_file(tmp_path: Path) -> None:
    """A resume with the wrong model is refused after the store was opened. The file must still be intact."""
    path = tmp_path / "clients.bin"
    index = saved_store(path)
    before = path.read_bytes()
    Store(Memory(torch.zeros(1), torch.zeros(0), torch.tensor(0)), 1, 1, path)
    Store(Memory(torch.zeros(10_000), torch.zeros(0), torch.tensor(0)), N, S, path)
    assert path.read_bytes() == before
    store = Store(record(-1), N, S, path)
    store.restore(index)
    assert value(store.read(1)) == 1


def test_clients_that_keep_nothing_need_no_file(tmp_path: Path) -> None:
    store = Store(None, N, S, tmp_path / "clients.bin")
    store.restore(store.index())
    assert store.read(0) is None
    assert not list(tmp_path.iterdir())


def test_large_records_do_not_reserve_much_more_than_they_need(tmp_path: Path) -> None:
    """64 slots of a 40 MB record would be 2.5 GB for a cohort of ten."""
    big = Memory(torch.zeros(2_000_000), torch.zeros(0), torch.tensor(0))
    store = Store(big, 100, 10, tmp_path / "clients.bin")
    store.stage()
    assert (tmp_path / "clients.bin").stat().st_blocks * 512 < 5 * 8_000_000


def test_a_full_disk_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    store = Store(record(-1), N, S, tmp_path / "clients.bin")
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StorageError, match="No space left"):
        store.stage()


def test_room_is_reserved_for_the_clients_that_can_take_part(tmp_path: Path) -> None:
    """A run reserves room for the clients that its rounds can reach, and for more if it is extended."""
    fed = fk.Federation.from_arrays([(torch.randn(2, 3), torch.tensor([0, 1]))] * 500)
    sizes = []
    for rounds in (1, 40):
        kw = {"cohort": 2, "engine": "sequential", "progress": False, "out": tmp_path, "resume": True}
        run = fk.train(lambda: torch.nn.Linear(3, 2), fed, "scaffold", rounds=rounds, **kw)
        sizes.append((tmp_path / "clients.bin").stat().st_size)
        seen = [i for i in range(500) if run.clients[i] is not None]
        assert 2 * rounds - 20 <= len(seen) <= 2 * rounds
    assert sizes[0] < 100 * 64
    assert sizes[0] < sizes[1] < 400 * 64


def test_memory_of_earlier_runs_is_forgotten() -> None:
    forget_peak()
    before = peak_memory()
    held = [torch.ones(1_000_000) for _ in range(100)]  # 400 MB
    most = peak_memory()
    del held
    forget_peak()
    now = peak_memory()
    assert before is not None
    assert most is not None
    assert now is not None
    assert most > before + 300
    assert now < most - 300
