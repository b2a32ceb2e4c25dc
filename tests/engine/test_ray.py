"""Clients on a Ray cluster give the bits of `sequential`, whatever happens to workers and nodes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import fedkeel as fk
from fedkeel.cli import app as cli
from fedkeel.runs.config import RunConfig, resolve
from fedkeel.runs.saved_config import difference
from tests.engine import test_engines, test_faster_numerics, test_faults
from tests.engine.test_engines import PLENTY, dropout_net, norm_net, same
from tests.engine.test_faults import BAD, MARK, REST, raises, times
from tests.processes import until

ROOT = Path(__file__).parents[2]


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fedkeel.engine.runners.ray", raising=False)
    with pytest.raises(ImportError, match=r"^engine: 'ray' needs the package ray: pip install 'fedkeel\[ray\]'$"):
        test_faults.train("ray")


def test_without_ray_the_command_line_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fedkeel.engine.runners.ray", raising=False)
    with pytest.raises(SystemExit) as end:
        cli.main(["run", "--algorithm", "fedavg", "--engine", "ray", "--rounds", "1", "--out", str(tmp_path / "x")])
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "error: engine: 'ray' needs the package ray: pip install 'fedkeel[ray]'"


def test_an_address_is_for_ray_only() -> None:
    with pytest.raises(ValueError, match=r"ray_address = '10.0.0.1:6379' is not allowed with engine = 'sequential'"):
        test_faults.train("sequential", ray_address="10.0.0.1:6379")


@pytest.mark.parametrize("option", ["--jobs=2", "--tensorboard=x"])
def test_unsupported_settings_of_a_study_on_ray_are_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", "--algorithms", "fedavg", "--ray", "local", option, "--out", str(tmp_path / "x")])
    assert end.value.code == 2
    assert "is not allowed with ray" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")

pytestmark = [  # Ray's own code leaves files open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

from fedkeel.engine.runners import ray as engine  # noqa: E402
from fedkeel.study.running.plan import StudyRun  # noqa: E402
from fedkeel.study.running.ray_runs import RayPool  # noqa: E402
from fedkeel.study.study import Study  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One node with two cores, which all tests share."""
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # no usage statistics; not at low priority
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.idle = []  # for `warm`
    disconnect = engine.connect(made.address)
    yield made
    disconnect()
    made.shutdown()
    gc.collect()  # warnings about files that Ray leaves open belong to this test, not to a later one


@pytest.fixture
def free(cluster: Any) -> Any:
    """The cluster without running work. Ray knows by now that nodes killed by a test are dead."""
    while cluster.idle:
        ray.kill(cluster.idle.pop())
    until(lambda: sum(node["Alive"] for node in ray.nodes()) == 1, seconds=60)
    return cluster


@pytest.fixture
def warm(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that all runs share, because starting a process takes longer than a small run."""
    idle: list[Any] = cluster.idle

    def start(self: engine.Ray) -> engine.Worker:
        actor = idle.pop() if idle else self.make.remote()
        return engine.Worker(actor, deque([(actor.start.remote(*self.setup), [])]), since=time.monotonic())

    monkeypatch.setattr(engine.Ray, "_start", start)
    monkeypatch.setattr(engine.Ray, "close", lambda self: idle.extend(worker.actor for worker in self.workers))


# The same bits --------------------------------------------------------------------------------------------------------


def test_the_bits_of_sequential(warm: None) -> None:
    same(test_engines.train("scaffold"), test_engines.train("scaffold", "ray", workers=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", fk.algorithms())
def test_every_method_has_the_bits_of_sequential(warm: None, name: str) -> None:
    """Four rounds: in the first, clients are sent one by one; later a worker gets all its clients in one call."""
    same(test_engines.train(name, rounds=4), test_engines.train(name, "ray", rounds=4, workers=2))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("model", [norm_net, dropout_net])
@pytest.mark.parametrize("name", ["fedavg", "fedbn"])
def test_buffers_and_dropout(warm: None, name: str, model: Any, workers: int) -> None:
    one = test_engines.train(name, model=model, fed=PLENTY, rounds=3)
    other = test_engines.train(name, "ray", model=model, fed=PLENTY, rounds=3, workers=workers)
    same(one, other)
    assert all(torch.equal(z, other.model.state_dict()[key]) for key, z in one.model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_and_settings(warm: None, dtype: torch.dtype) -> None:
    options = {"dtype": dtype, "weight_decay": 0.1, "clip": 0.5, "weights": "samples", "lr_decay": 0.5}
    same(test_engines.train(**options), test_engines.train(engine="ray", **options))


@pytest.mark.slow
@pytest.mark.parametrize("settings", test_faster_numerics.FASTER, ids=str)
def test_other_memory_formats_and_precisions(warm: None, settings: dict[str, Any]) -> None:
    same(test_faster_numerics.train(**settings), test_faster_numerics.train(engine="ray", workers=2, **settings))


@pytest.mark.slow
def test_a_run_resumes_on_another_engine(warm: None, tmp_path: Path) -> None:
    test_faults.train("ray", rounds=1, out=tmp_path)
    test_faults.train("sequential", rounds=2, out=tmp_path, resume=True)
    run = test_faults.train("ray", out=tmp_path, resume=True)
    same(run, test_faults.train())


@pytest.mark.slow
def test_data_travel_once_and_what_the_server_sends_once_a_round(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[Any] = []
    put = ray.put
    monkeypatch.setattr(engine.ray, "put", lambda z: puts.append(z) or put(z))
    fed = test_faults.FED
    test_faults.train("ray", rounds=3)
    setup, data, *sent = puts
    assert len(sent) == 3
    assert data["x"][0].nbytes == fed.x.nbytes
    assert bytes(data["x"][0]) not in setup


# Faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "why"),
    [(raises, "ArithmeticError: the sensor is broken"), (times(float("nan")), "NotFinite: dx is not finite")],
)
def test_a_bad_client_is_dropped(warm: None, loss: Any, why: str) -> None:
    run = test_faults.train("ray", loss=loss)
    assert [row["faults"] for row in run.history] == [{str(BAD): why}] * 3
    assert run.clients[BAD] is None
    assert torch.equal(run.params, test_faults.train(cohort=[REST] * 3).params)


@pytest.mark.slow
def test_a_client_that_kills_its_workers_is_dropped(free: Any) -> None:
    driver = os.getpid()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if os.getpid() != driver and bool((target == MARK).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(output, target)

    run = test_faults.train("ray", loss=loss, rounds=2)
    assert all(row["faults"][str(BAD)].startswith("WorkerDied: 3 workers died on this client") for row in run.history)
    assert [row["dropped"] for row in run.history] == [1, 1]
    assert torch.equal(run.params, test_faults.train(cohort=[REST] * 2, rounds=2).params)


@pytest.mark.slow
def test_a_slow_client_is_dropped(free: Any) -> None:
    driver = os.getpid()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if os.getpid() != driver and bool((target == MARK).any()):
            time.sleep(60)
        return cross_entropy(output, target)

    run = test_faults.train("ray", loss=loss, rounds=2, timeout=3.0)
    assert [row["faults"] for row in run.history] == [{str(BAD): "Timeout: no result within 3 s"}] * 2
    assert torch.equal(run.params, test_faults.train(cohort=[REST] * 2, rounds=2).params)


@pytest.mark.slow
def test_workers_that_die_in_the_middle_of_a_call_change_nothing(free: Any, tmp_path: Path) -> None:
    """Once per round, while a worker holds several clients."""
    driver = os.getpid()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        mark = tmp_path / "kill"
        if os.getpid() != driver and bool((target == MARK).any()) and mark.exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(output, target)

    run = test_faults.train("ray", loss=loss, progress=lambda row: (tmp_path / "kill").touch())
    assert sum(row["dropped"] for row in run.history) == 0
    same(run, test_faults.train())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedlada", "scaffold", "gradma"])
def test_a_node_that_dies_in_the_middle_of_a_round_changes_nothing(free: Any, tmp_path: Path, name: str) -> None:
    class Hog:
        """Takes the cores of the first node, so that workers run on the others."""

        def ready(self) -> None:
            pass

    hog = ray.remote(Hog).options(num_cpus=2).remote()
    ray.get(hog.ready.remote())
    nodes = [free.add_node(num_cpus=1) for _ in range(2)]
    free.wait_for_nodes()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        """The first client after round 1 writes which node it is on, and never ends."""
        if (tmp_path / "armed").exists() and not list(tmp_path.glob("node-*")):
            (tmp_path / f"node-{ray.get_runtime_context().get_node_id()}").touch()
            time.sleep(300)
        return cross_entropy(output, target)

    def kill() -> None:
        until(lambda: list(tmp_path.glob("node-*")), seconds=120)
        here = next(tmp_path.glob("node-*")).name.removeprefix("node-")
        free.remove_node(next(node for node in nodes if node.node_id == here), allow_graceful=False)
        killed.append(here)

    def train(engine: str, loss: Callable[[Tensor, Tensor], Tensor], **kw: Any) -> fk.Run:
        return fk.train(
            test_engines.smooth_net, PLENTY, name, rounds=5, cohort=4, batch_size=64, loss=loss, engine=engine,
            progress=lambda row: row["round"] == 1 and (tmp_path / "armed").touch(), **kw,
        )  # fmt: skip

    killed: list[str] = []
    thread = threading.Thread(target=kill)
    thread.start()
    run = train("ray", loss, workers=2)
    thread.join()
    ray.kill(hog)
    assert len(killed) == 1
    assert [row["faults"] for row in run.history] == [{}] * 5
    same(run, train("sequential", cross_entropy))
    for node in nodes:
        if node.node_id not in killed:
            free.remove_node(node)


@pytest.mark.slow
def test_what_cannot_be_sent_is_refused_before_work_starts(free: Any) -> None:
    lock = threading.Lock()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        with lock:
            return cross_entropy(output, target)

    with pytest.raises(ValueError, match="engine: 'ray': model, loss or data hold something that cannot be sent"):
        test_faults.train("ray", loss=loss)


# Clusters -------------------------------------------------------------------------------------------------------------

ALONE = """
import os, sys, torch, ray, fedkeel as fk
from torch import nn
fed = fk.load("digits").split("iid", clients=6)
def go(engine, **kw):
    model, loss = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), lambda o, t: nn.functional.cross_entropy(o, t)
    return fk.train(model, fed, "scaffold", rounds=3, cohort=4, loss=loss, engine=engine, progress=False, **kw)
assert torch.equal(go("ray", ray_address=sys.argv[1], workers=2).params, go("sequential").params)
assert not ray.is_initialized()
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "joined"])
def test_a_script_with_lambdas_prints_nothing(free: Any, where: str) -> None:
    address = "local" if where == "local" else free.address
    ended = subprocess.run([sys.executable, "-c", ALONE, address], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert len([node for node in ray.nodes() if node["Alive"]]) == 1  # the cluster that ran before still runs


@pytest.mark.slow
def test_an_address_without_a_cluster() -> None:
    script = "from fedkeel.engine.runners.ray import connect; connect('127.0.0.1:1')"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    error = "ValueError: ray_address = '127.0.0.1:1': no cluster can be used there: ConnectionRefusedError"
    assert ended.stderr.splitlines()[-1].startswith(error)


def test_another_cluster_than_the_one_of_this_process(free: Any) -> None:
    with pytest.raises(ValueError, match="already connected to"):
        engine.connect("10.0.0.1:6379")


@pytest.mark.parametrize(
    ("total", "asked", "expected"),
    [
        ({"CPU": 8.0}, (10, None, "auto"), (8, 1, 0)),
        ({"CPU": 8.0}, (3, None, "auto"), (3, 1, 0)),
        ({"CPU": 8.0, "GPU": 2.0}, (10, None, "auto"), (2, 1, 1)),
        ({"CPU": 8.0, "GPU": 2.0}, (10, 4, "cuda"), (4, 1, 0.5)),
        ({"CPU": 8.0, "GPU": 2.0}, (10, None, "cpu"), (8, 1, 0)),
    ],
)
def test_the_resources_of_workers(monkeypatch: pytest.MonkeyPatch, total: Any, asked: Any, expected: Any) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: total)
    count, options = engine.resources(*asked)
    assert (count, options["num_cpus"], options["num_gpus"]) == expected


# Studies --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_whole_runs(free: Any, tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that do not see the driver's directories send their results. A run that fails does not stop the others."""
    from fedkeel.engine.state import directory
    from fedkeel.runs import from_config
    from fedkeel.study.running import ray_runs

    if not shared:
        monkeypatch.setattr(ray_runs, "_mark", lambda out: out.mkdir(parents=True) or out / "nobody" / "sees")
    good = [RunConfig(algorithm=name, rounds=3, clients=10, cohort=3) for name in ("fedavg", "scaffold")]
    bad = RunConfig(data="nothing", rounds=3, clients=10, cohort=3)
    outs = [tmp_path / str(i) for i in range(3)]
    (branch,) = Study.read({"methods": {"fedavg": {}}}).branches
    pool = RayPool("local")
    for config, out in zip([good[0], bad, good[1]], outs, strict=True):
        pool.start(StudyRun(branch, config, out), None)
    ended = {outs.index(run.out): error for _ in outs for run, error in pool.ended()}
    pool.close()
    assert ended[0] is None
    assert ended[2] is None
    assert "unknown name 'nothing'" in ended[1]
    for config, out in ((good[0], outs[0]), (good[1], outs[2])):
        straight = from_config.train(config.changed(engine="sequential"), progress=False)
        assert directory.summary(out, 3)["final_accuracy"] == straight.history[-1]["test_accuracy"]
        assert [row["train_loss"] for row in directory.history(out)] == [row["train_loss"] for row in straight.history]
        assert difference(out, resolve(config)) is None
        assert not list(out.glob(".*"))
