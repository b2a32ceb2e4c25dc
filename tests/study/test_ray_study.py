"""Whole studies on a Ray cluster of two nodes: the results of a study without it, whatever happens to a node."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedkeel.cli import app as cli
from fedkeel.engine.state import directory
from fedkeel.engine.state.directory import RunDirectory
from fedkeel.runs import from_config
from fedkeel.runs.config import RunConfig
from tests.processes import children, forked, until

ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
pytestmark = [  # Ray's own code leaves files open
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

from fedkeel.engine.runners.ray import connect  # noqa: E402
from fedkeel.study.running.plan import StudyRun  # noqa: E402
from fedkeel.study.running.ray_runs import RayPool  # noqa: E402
from fedkeel.study.study import Study  # noqa: E402

TASK = ["--clients=10", "--cohort=3", "--local-steps=2", "--model=logistic", "--engine=sequential", "--seeds=2"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without cores for runs, and two nodes with one each."""
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # nothing is sent; not behind all others
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    made.wait_for_nodes()
    disconnect = connect(made.address)
    yield made
    disconnect()
    made.shutdown()
    gc.collect()


def compare(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", *TASK, *words])
    return int(end.value.code or 0)


def found(out: Path) -> dict[str, Any]:
    """What every run of a study found, round by round, without what depends on the clock."""
    runs = {}
    for path in sorted(out.glob("*-seed*")):
        rows = directory.history(path)
        runs[path.name] = [{key: z for key, z in row.items() if key not in ("seconds", "wall")} for row in rows]
    return runs


def test_a_study_has_the_results_of_one_without_ray(cluster: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    words = ["--rounds", "3", "--algorithms", "fedavg,scaffold"]
    assert compare(*words, "--jobs", "1", "--out", str(here)) == 0
    assert compare(*words, "--ray", cluster.address, "--out", str(there)) == 0
    assert len(found(there)) == 4
    assert found(there) == found(here)
    results = [json.loads((out / "results.json").read_text())["rows"] for out in (here, there)]
    assert [row["final_accuracy"] for row in results[0]] == [row["final_accuracy"] for row in results[1]]

    with monkeypatch.context() as patch:  # all is complete: nothing is sent to the cluster
        patch.setattr(RayPool, "start", lambda *_: pytest.fail("a complete run was started again"))
        assert compare(*words, "--ray", cluster.address, "--out", str(there)) == 0

    capsys.readouterr()  # a run that fails is told with its error, and stops no other
    words[-1] += ",fedprox"
    assert compare(*words, "--set", "fedprox.lr=1e38", "--ray", cluster.address, "--out", str(there)) == 1
    rows = {row["method"]: row for row in json.loads((there / "results.json").read_text())["rows"]}
    assert [len(rows[name]["errors"]) for name in ("fedavg", "scaffold", "fedprox")] == [0, 0, 2]
    assert "NotFinite" in str(rows["fedprox"]["errors"])
    assert "NotFinite" in capsys.readouterr().out


def test_a_node_that_dies_in_the_middle_of_a_study_costs_no_result(cluster: Any, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    words = ["--rounds", "150", "--algorithms", "fedavg,scaffold"]
    assert compare(*words, "--jobs", "1", "--out", str(here)) == 0
    victim, cut = cluster.nodes[0], []

    def kill() -> None:
        """Ends a node while a run on it is between its first and its last round."""
        if run := until(lambda: in_the_middle(victim, there), seconds=60):
            cluster.remove_node(victim, allow_graceful=False)
            cut.append((run, (run / "summary.json").exists()))

    thread = threading.Thread(target=kill)
    thread.start()
    assert compare(*words, "--ray", cluster.address, "--out", str(there)) == 0
    thread.join()
    assert [complete for _, complete in cut] == [False], "the node was not killed in the middle of a run"
    assert found(there) == found(here)


def in_the_middle(node: Any, out: Path) -> Path | None:
    """The directory of a run that a process of this node has begun and not completed."""
    for pid in children(node.all_processes["raylet"][0].process.pid):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                lock = Path(os.readlink(file))
            except OSError:
                continue
            if lock.name == "lock" and lock.is_relative_to(out) and has_rows(lock.parent):
                return lock.parent
    return None


def has_rows(run: Path) -> bool:
    rows = run / "metrics.jsonl"
    return rows.exists() and 5 < len(rows.read_text().splitlines()) < 100


def test_a_run_waits_for_the_process_that_still_holds_its_directory(cluster: Any, tmp_path: Path) -> None:
    """After the death of a node its last process may live a little longer."""
    held = tmp_path / "held"

    def hold() -> None:
        claimed = RunDirectory(tmp_path, resume=True)
        held.touch()
        until(lambda: not held.exists(), seconds=60)
        del claimed

    with forked(hold):
        until(held.exists)
        pool = RayPool(cluster.address)
        pool.start(study_run(tmp_path), None)
        timer = threading.Timer(8.0, held.unlink)  # a task has begun by then, and tries once a second
        timer.start()
        assert [error for _, error in pool.ended()] == [None]
        timer.join()
        pool.close()
    assert directory.summary(tmp_path, 2) is not None


def study_run(out: Path, fresh: bool = False) -> StudyRun:
    (branch,) = Study.read({"methods": {"fedavg": {}}, "clients": 10, "cohort": 3}).branches
    return StudyRun(branch, RunConfig(rounds=2, clients=10, cohort=3), out, fresh=fresh)


def test_only_the_run_that_is_replaced_begins_anew(cluster: Any, tmp_path: Path) -> None:
    for name in ("old", "partial"):
        from_config.train(RunConfig(rounds=1, clients=10, cohort=3), tmp_path / name, progress=False)
        (tmp_path / name / "summary.json").unlink()
    first = {name: directory.history(tmp_path / name)[0]["seconds"] for name in ("old", "partial")}
    pool = RayPool(cluster.address)
    for name, fresh in (("old", True), ("partial", False)):
        pool.start(study_run(tmp_path / name, fresh), None)
    assert [error for _ in range(2) for _, error in pool.ended()] == [None, None]
    pool.close()
    same = {name: directory.history(tmp_path / name)[0]["seconds"] == seconds for name, seconds in first.items()}
    assert same == {"old": False, "partial": True}
