"""Robust means, attacks, compressors, privacy and schedules as other people compute them, and as we do."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from environments import HOME, Peer, clone_of

import fedkeel as fk
from fedkeel.channel import accounting, aggregation
from fedkeel.channel import privacy as private
from fedkeel.channel.draws import generator
from fedkeel.channel.link import Link
from fedkeel.channel.words import conditions
from fedkeel.core.flat import Layers
from fedkeel.core.round import weighted_sum
from fedkeel.engine.participation import Schedule
from fedkeel.engine.settings import Settings

PACKAGES = ("opacus==1.6.0", "pfl==0.6.0", "fedlab==1.3.0", "prv-accountant==0.2.0", "omegaconf==2.3.0")
KARIMIREDDY = Peer("byzantine-robust-noniid-optimizer", clone="epfml/byzantine-robust-noniid-optimizer", commit="0e27349")
FLSIM = Peer("FLSim", clone="facebookresearch/FLSim", commit="7311f2d")
BLADES = Peer("Blades", clone="lishenghui/blades", commit="711e8df")
FEDSCALE = Peer("FedScale", clone="SymbioticLab/FedScale", commit="7ec441c")

S, BAD = 11, 2
z = torch.randn(S, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
z[:BAD] += 30
bad = torch.tensor([True] * BAD + [False] * (S - BAD))
v = torch.randn(600, generator=torch.Generator().manual_seed(1))


# What the peers have --------------------------------------------------------------------------------------------------


def package(name: str) -> Any:
    place = HOME / "conditions"
    if not place.exists():
        HOME.mkdir(exist_ok=True)
        (HOME / ".gitignore").write_text("*\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), *PACKAGES]
        subprocess.run(command, check=True)
    if str(place) not in sys.path:
        sys.path.append(str(place))
    return importlib.import_module(name)


def from_clone(peer: Peer, name: str) -> Any:
    """A module of a clone. What it prints is dropped."""
    root = str(clone_of(peer))
    if root not in sys.path:
        sys.path.insert(0, root)
    with contextlib.redirect_stdout(io.StringIO()):
        return importlib.import_module(name)


def stubbed(peer: Peer, path: str, **modules: dict[str, Any]) -> Any:
    """One file of a clone, with empty modules in place of what it imports and does not use here."""
    for name, members in modules.items():
        sys.modules[name.replace("__", ".")] = types.SimpleNamespace(**members)  # type: ignore[assignment]
    spec = importlib.util.spec_from_file_location("peer_file", clone_of(peer) / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Ours -----------------------------------------------------------------------------------------------------------------


def mean(rule: aggregation.Aggregation, uploads: torch.Tensor = z) -> torch.Tensor:
    p = torch.ones(len(uploads), dtype=torch.float64) / len(uploads)
    weights = rule.weights(aggregation.inner_products([uploads]), p)
    return weighted_sum(weights, uploads) if rule.whole else rule.mean(p, uploads)


def sent(text: str, layers: Layers | None = None) -> torch.Tensor:
    return Link(conditions("uplink", text), layers or Layers([600], shapes=[(20, 30)])).send(v[None], [generator(0)])[0]


def attackers(attack: Any) -> torch.Tensor:
    return attack.upload(z, bad, generator(0)).expand(BAD, -1)


def alie_unbiased(sign: int) -> torch.Tensor:
    """Our ALIE attack, with standard deviations that divide by n - 1. sign: -1 moves down, as ours, 1 up."""
    honest = z[~bad].mean(0)
    away = honest - attackers(fk.ALIE(BAD / S))
    return honest + sign * away * ((S - BAD) / (S - BAD - 1)) ** 0.5


def spent(sampling: accounting.Sampling, noise: float, rounds: int) -> float:
    one = accounting.Accountant(sampling, noise, 1e-5)
    for _ in range(rounds):
        one.spend(range(1), 1)
    return one.epsilon()


# Theirs ---------------------------------------------------------------------------------------------------------------


def flower_strategy(name: str, **options: Any) -> torch.Tensor:
    """The aggregated array of a strategy of Flower."""
    from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict  # noqa: F401
    from flwr.serverapp import strategy
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    replies = []
    for row in z:
        content = RecordDict({"arrays": ArrayRecord([row.numpy()]), "metrics": MetricRecord({"num-examples": 1})})
        replies.append(Message(RecordDict(), 1, "train"))
        replies[-1] = Message(content, reply_to=_received(replies[-1]))
    arrays, _ = getattr(strategy, name)(**options).aggregate_train(1, replies)
    return torch.from_numpy(next(iter(arrays.values())).numpy())


def _received(message: Any) -> Any:
    message.metadata.__dict__["_message_id"] = "1"
    return message


def workers(attack: str, name: str, **options: Any) -> torch.Tensor:
    """What the attackers of byzantine-robust-noniid-optimizer send."""
    module = from_clone(KARIMIREDDY, f"codes.attacks.{attack}")
    worker = from_clone(KARIMIREDDY, "codes.worker")
    made = object.__new__(getattr(module, name))
    honest = [SimpleNamespace(get_gradient=lambda row=row: row) for row in z[~bad]]
    made.simulator, made.__dict__["_gradient"] = SimpleNamespace(workers=honest), None
    if attack == "alittle":
        with contextlib.suppress(TypeError):
            worker.ByzantineWorker.__init__ = lambda self, *a, **kw: None
        made.__init__(S, BAD, **options)
        made.simulator = SimpleNamespace(workers=honest)
    made.__dict__.update(options)
    made.omniscient_callback()
    return made.get_gradient().expand(BAD, -1)


def bit_flipped() -> torch.Tensor:
    """What its workers that flip signs send instead of their gradients."""
    module, worker = from_clone(KARIMIREDDY, "codes.attacks.bitflipping"), from_clone(KARIMIREDDY, "codes.worker")
    worker.TorchWorker.get_gradient = lambda self: self.own
    found = []
    for row in z[bad]:
        made = object.__new__(module.BitFlippingWorker)
        made.own = row
        found.append(made.get_gradient())
    return torch.stack(found)


def aggregator(module: str, name: str, *options: Any) -> torch.Tensor:
    made = getattr(from_clone(KARIMIREDDY, f"codes.aggregator.{module}"), name)(*options)
    return made(list(z))


def blades_alie() -> torch.Tensor:
    constants = {"CLIENT_UPDATE": "update", "CLIENT_ID": "id"}
    stubs: dict[str, dict[str, Any]] = {"fedlib": {}, "fedlib__constants": constants}
    stubs |= {"fedlib__trainers": {"Trainer": object}, "fedlib__aggregators": {"Signguard": type("Signguard", (), {})}}
    text = (clone_of(BLADES) / "blades/adversaries/alie_adversary.py").read_text()
    for name, members in stubs.items():
        sys.modules[name.replace("__", ".")] = SimpleNamespace(**members)  # type: ignore[assignment]
    space: dict[str, Any] = {"Adversary": object}
    exec(text.replace("from .adversary import Adversary", ""), space)
    made = space["ALIEAdversary"].__new__(space["ALIEAdversary"])
    n, m = torch.tensor(S), torch.tensor(BAD)
    s = torch.floor_divide(n, 2) + 1 - m
    made.z_max = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0)).icdf((n - m - s) / (n - m))
    made.get_benign_updates = lambda trainer: z[~bad]
    results = [{"id": i, "update": None} for i in range(S)]
    client = lambda i: SimpleNamespace(is_malicious=bool(bad[i]))  # noqa: E731
    manager = SimpleNamespace(get_client_by_id=client)
    made.on_local_round_end(
        SimpleNamespace(server=SimpleNamespace(aggregator=None), local_results=results, client_manager=manager)
    )
    return torch.stack([results[i]["update"] for i in range(BAD)])


def fedlab_topk(ratio: float) -> torch.Tensor:
    package("fedlab")
    one = importlib.import_module("fedlab.contrib.compressor.topk").TopkCompressor(ratio)
    return one.decompress(*one.compress(v), v.shape)


def fedlab_quantised(bits: int) -> torch.Tensor:
    package("fedlab")
    one = importlib.import_module("fedlab.contrib.compressor.quantization").QSGDCompressor(bits, random=False)
    return one.decompress(one.compress(v))


def flsim_mask() -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers that FLSim's sparse channel keeps."""
    text = (clone_of(FLSIM) / "flsim/channels/sparse_mask_channel.py").read_text()
    body = text[text.index("    def compute_mask(") : text.index("@dataclass\nclass SparseMaskChannelConfig")]
    space: dict[str, Any] = {}
    exec("import torch\nfrom collections import OrderedDict\nfrom typing import Dict\nclass Channel:\n" + body, space)
    channel = space["Channel"]()
    channel.proportion_of_zero_weights = 0.9
    mask = channel.compute_mask({"x": torch.nn.Parameter(v)}, "topk")["x"]
    return sent("topk:0.1"), v * mask


def flsim_staleness(exponent: float | None) -> tuple[list[float], list[float]]:
    text = (clone_of(FLSIM) / "flsim/utils/async_trainer/async_staleness_weights.py").read_text()
    text = text.replace("from flsim.utils.config_utils import fullclassname, init_self_cfg", "").split(
        "@dataclass\nclass Async"
    )[0]
    space: dict[str, Any] = {"init_self_cfg": lambda *a, **kw: None}
    exec(text.replace("from omegaconf import MISSING", "MISSING = None"), space)
    kind = space["ConstantStalenessWeight" if exponent is None else "PolynomialStalenessWeight"]
    one = kind.__new__(kind)
    one.cfg = SimpleNamespace(exponent=exponent, avg_staleness=0)
    ours = Settings(buffer=2, staleness="constant" if exponent is None else "sqrt")
    return [ours.freshness(tau) for tau in range(20)], [one.weight(tau) for tau in range(20)]


def fedscale_active(folder: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Who is there in every second of two turns of a trace."""
    import pickle

    module = stubbed(FEDSCALE, "fedscale/cloud/internal/client_metadata.py")
    trace = {
        1: {"active": [1, 6], "inactive": [3, 9], "finish_time": 12},
        2: {"active": [0], "inactive": [11], "finish_time": 12},
    }
    path = folder / "trace"
    path.write_bytes(pickle.dumps(trace))
    theirs = [module.ClientMetadata(1, i, {"computation": 1, "communication": 1}, one) for i, one in trace.items()]
    fed = fk.Federation.from_arrays([(np.zeros((2, 1), "f"), np.zeros(2, int))] * 2)
    ours = Schedule(fk.participation("trace", file=str(path)), 0, 2, fed)
    times = [t + 0.5 for t in range(11)]
    return [ours.participants(0, t) for t in times], [[i for i, one in enumerate(theirs) if one.is_active(t)] for t in times]


def opacus_epsilon() -> tuple[float, float]:
    package("opacus.accountants.analysis")
    rdp = importlib.import_module("opacus.accountants.analysis.rdp")
    orders = list(importlib.import_module("dp_accounting.rdp").RdpAccountant()._orders)
    curve = rdp.compute_rdp(q=0.1, noise_multiplier=1.5, steps=50, orders=orders)
    return spent(accounting.Sampling(accounting.POISSON, 100, q=0.1), 1.5, 50), rdp.get_privacy_spent(
        orders=orders, rdp=curve, delta=1e-5
    )[0]


def pfl_epsilon(name: str) -> tuple[float, float]:
    sys.modules.setdefault(
        "prv_accountant", SimpleNamespace(LaplaceMechanism=0, PoissonSubsampledGaussianMechanism=0, PRVAccountant=0)
    )  # type: ignore[arg-type]
    package("pfl")
    kind = getattr(importlib.import_module("pfl.privacy.privacy_accountant"), name)
    theirs = kind(
        num_compositions=50, sampling_probability=0.1, mechanism="gaussian", epsilon=None, delta=1e-5, noise_parameter=1.5
    )
    return spent(accounting.Sampling(accounting.POISSON, 100, q=0.1), 1.5, 50), theirs.epsilon


def dp_accounting_replace_one() -> tuple[float, float]:
    import dp_accounting as dp
    from dp_accounting import rdp

    theirs = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(2.0)), 30)
    return spent(accounting.Sampling(accounting.REPLACE, 1000, 100), 4.0, 30), theirs.get_epsilon(1e-5)


def flower_clipped() -> tuple[torch.Tensor, np.ndarray]:
    from flwr.supercore.differential_privacy import clip_inputs_inplace

    theirs = []
    for row in z:
        fields = [row[:3].numpy().copy(), row[3:].numpy().copy()]
        clip_inputs_inplace(fields, 2.0)
        theirs.append(np.concatenate(fields))
    scale = private.factors(private.norms({"a": z[:, :3], "b": z[:, 3:]}, fk.Privacy(clip=2.0, noise=0)), 2.0)
    return z * scale[:, None], np.stack(theirs)


def flower_split() -> tuple[float, float]:
    from flwr.supercore.differential_privacy import compute_adaptive_noise_params

    return private.noise_of_updates(0.8, 100 / 20), compute_adaptive_noise_params(0.8, 100, None)[1]


def flower_next_clip(count_clipped: bool) -> tuple[float, float]:
    """Our next clip, and Flower's if it counts what was clipped (as it does) or what was not (as the paper does)."""
    from flwr.serverapp.strategy.dp_adaptive_clipping import DifferentialPrivacyServerSideAdaptiveClipping as Adaptive

    made = Adaptive.__new__(Adaptive)
    made.clipping_norm, made.clip_norm_lr, made.target_clipped_quantile = 2.0, 0.2, 0.5
    below = z.norm(dim=1) <= 2.0
    made._geometric_update(float((~below if count_clipped else below).double().mean()))
    return private.next_clip(2.0, below, S, 0.0, fk.Privacy(clip=2.0, noise=0, quantile=0.5)), made.clipping_norm


def flower_krum(kept: int) -> tuple[torch.Tensor, torch.Tensor]:
    from flwr.app import ArrayRecord, RecordDict
    from flwr.serverapp.strategy.multikrum import select_multikrum

    replies = [RecordDict({"arrays": ArrayRecord([row.numpy()])}) for row in z]
    taken = select_multikrum(replies, num_malicious_nodes=BAD, num_nodes_to_select=kept)
    rule = aggregation.Krum(0.2) if kept == 1 else aggregation.MultiKrum(0.2)
    return mean(rule), torch.stack([z[replies.index(one)] for one in taken]).mean(0)


def low_rank() -> tuple[float, float]:
    """The error of rank 2, and that of the best matrix of rank 2 (numpy's singular values)."""
    theirs = np.sqrt((np.linalg.svd(v.view(20, 30).double().numpy(), compute_uv=False)[2:] ** 2).sum())
    return float((sent("lowrank:2") - v).norm()), float(theirs)
