"""What is compared: a method of fedkeel with its options, a case of a peer's script, and the cause where they differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import byhand
import torch
from problem import FULL, PARTIAL, Problem

SAMPLES = {"weights": "samples"}
SINGLE = {"dtype": torch.float32}
LOCAL = {"lr": 0.1}
MOMENTUM = LOCAL | {"server_lr": 0.7, "beta1": 0.6}
ADAM = LOCAL | {"server_lr": 0.1, "beta1": 0.8, "beta2": 0.9}
ADAM_0 = ADAM | {"tau": 0.01, "v0": 0.0}
WIDE = LOCAL | {"server_lr": 1.0, "beta1": 0.8, "tau": 0.5, "v0": 0.0}
MIME = {"lr": 0.1, "server_lr": 0.9, "beta": 0.8, "frozen": "full_step"}
MIME_ADAM = MIME | {"lr": 0.02, "base": "adam", "beta1": 0.8, "beta2": 0.9, "eps": 0.01}
EQUAL = {"equal": True, "cohorts": FULL}
DECAY = {"equal": True, "lr_decay": 0.9}
SAM = LOCAL | {"rho": 0.2}
NORM = 1e-6  # FL-Simulator adds 1e-7 to the norm of a gradient that it divides by, and 1e-6 where it clips


def slowly(t: int) -> float:
    """The learning rate's factor in the code of FedAWE's authors."""
    return float((1 + t / 10) ** -0.5)


@dataclass(frozen=True)
class Case:
    method: str
    peer: str
    name: str  # of the case in the peer's script
    setting: str  # in words; only what differs from the common setting
    options: dict[str, Any]  # fedkeel's hyper-parameters
    settings: dict[str, Any] = field(default_factory=dict)  # of fedkeel's run
    why: str = ""  # the cause of a difference ...
    rule: Callable[[Problem], Any] | None = None  # ... and the peer's rule by hand, which must give the peer's weights
    via: str = ""  # the peer's method, if it is another method that must give the same weights here
    within: float = 0.0  # the largest difference that counts as the same; 0: rounding only


CASES = [
    # The server's step alone: the peer gets the clients' results.
    Case("fedavg", "flwr", "fedavg", "FedAvg, samples", LOCAL, SAMPLES),
    Case("fedavgm", "flwr", "fedavgm", "FedAvgM, samples, lr 0.7, momentum 0.6", MOMENTUM, SAMPLES),
    Case("fedadagrad", "flwr", "fedadagrad", "FedAdagrad, samples; v0 = 0",
         LOCAL | {"server_lr": 0.2, "tau": 0.01, "v0": 0.0}, SAMPLES),
    Case("fedyogi", "flwr", "fedyogi", "FedYogi, samples; v0 = 0", ADAM_0, SAMPLES),
    Case("fedadam", "flwr", "fedadam late", "FedAdam, samples; v0 = 0; rounds counted from 10^6", ADAM_0, SAMPLES),
    Case(
        "fedadam", "flwr", "fedadam", "FedAdam, samples; v0 = 0; as shipped", ADAM_0, SAMPLES,
        "Flower corrects the bias: its step is multiplied by sqrt(1 - beta2^(r+1)) / (1 - beta1^(r+1)), r = 1, 2, ...; "
        "Reddi et al. do not, nor does fedkeel. (Adam's own exponent would be r.)", byhand.flower_fedadam,
    ),
    Case("fedavgm", "torch", "fedavgm", "SGD(momentum=0.6) on the server", MOMENTUM),
    Case("fedadagrad", "torch", "fedadagrad", "Adagrad on the server", LOCAL | {"server_lr": 0.2, "tau": 0.01}),
    Case("fedadam", "torch", "fedadam", "Adam on the server, v0 = tau^2, step count 10^9", ADAM | {"tau": 0.01}),
    Case("fedams", "torch", "fedams", "Adam(amsgrad) on the server, first maximum 1e-3, step count 10^9", ADAM),
    Case("fedams", "torch", "fedams corrected", "the same from step 0; bias_correction=True",
         ADAM | {"bias_correction": True}),
    Case("fedadam", "fluke", "fedadam", "FedOpt(adam), lr 1; v0 = 0", WIDE | {"beta2": 0.9}),
    Case("fedyogi", "fluke", "fedyogi", "FedOpt(yogi), lr 1; v0 = 0", WIDE | {"beta2": 0.9}),
    Case("fedadagrad", "fluke", "fedadagrad", "FedOpt(adagrad), lr 1, beta1 0.8; v0 = 0", WIDE),
    Case(
        "fedadam", "fluke", "fedadam lr", "FedOpt(adam), lr 0.1; v0 = 0", ADAM_0, {},
        "fluke's learning rate also scales the displacement that goes into m and v (the averaging below it uses the same "
        "setting `lr`).", byhand.fluke_fedadam,
    ),
    Case("fedadagrad", "fedjax", "fedadagrad", "optax adagrad, samples, v0 = 0.1, tau = 0",
         LOCAL | {"server_lr": 0.2, "tau": 0.0, "v0": 0.1}, SAMPLES),
    Case(
        "fedadam", "fedjax", "fedadam", "fed_avg with optax adam, samples; v0 = 0", ADAM_0, SAMPLES,
        "optax corrects the bias of both moments.", byhand.optax_fedadam,
    ),
    # Clients and server are the peer's.
    Case("fedavg", "torch", "fedavg", "client 2 alone: SGD", LOCAL, {"cohorts": [[2]] * len(PARTIAL)}),
    Case("slowmo", "torch", "slowmo", "client 2 alone: SGD(momentum=0.7), new in each round; beta 0",
         LOCAL | {"momentum": 0.7, "beta": 0.0}, {"cohorts": [[2]] * len(PARTIAL)}),
    Case("local-adam", "torch", "local-adam", "Adam(amsgrad) on every client, step count 10^9, m new in each round, v kept",
         {"lr": 0.02, "beta1": 0.8, "beta2": 0.9}),
    Case("fedavg", "fedjax", "fedavg", "fed_avg, samples, server lr 0.8", LOCAL | {"server_lr": 0.8}, SAMPLES),
    Case("fedavg", "pfl", "fedavg", "float32, samples, central lr 0.8", LOCAL | {"server_lr": 0.8}, SAMPLES | SINGLE),
    Case("fedavg", "fluke", "fedavg", "samples", LOCAL, SAMPLES),
    Case("fedavg", "fedlab", "fedavg", "uniform", LOCAL),
    Case("fedsgd", "fluke", "fedsgd", "first batch of the round", LOCAL),
    Case("fedprox", "fedjax", "fedprox", "mu 0.5, samples, server lr 0.8", LOCAL | {"mu": 0.5, "server_lr": 0.8}, SAMPLES),
    Case("fedprox", "pfl", "fedprox", "float32, mu 0.5", LOCAL | {"mu": 0.5}, SINGLE),
    Case("fedprox", "fluke", "fedprox", "mu 0.5", LOCAL | {"mu": 0.5}),
    Case("fedprox", "fedlab", "fedprox", "mu 0.5", LOCAL | {"mu": 0.5}),
    Case("fedprox", "flgo", "fedprox", "mu 0.5, samples", LOCAL | {"mu": 0.5}, SAMPLES),
    Case("fedproxm", "pfl", "fedproxm", "float32, FedProx with central SGD(momentum=0.6)",
         LOCAL | {"mu": 0.5, "server_lr": 0.7, "beta1": 0.6}, SINGLE),
    Case("fedavgm", "fedjax", "fedavgm", "server sgd(0.7, momentum=0.6), samples", MOMENTUM, SAMPLES),
    Case("fedavgm", "pfl", "fedavgm", "float32, central SGD(momentum=0.6)", MOMENTUM, SINGLE),
    Case("fedavgm", "flgo", "fedavgm", "beta 0.6, samples", LOCAL | {"beta1": 0.6}, SAMPLES),
    Case(
        "fedavgm", "fluke", "fedavgm", "momentum 0.9", LOCAL | {"beta1": 0.9}, {},
        "fluke's first round only creates a momentum of 0: the model stays where it is and the round is lost.",
        byhand.fluke_fedavgm,
    ),
    Case("slowmo", "fairscale", "equal slowmo", "float32, full participation, equal K, lr decays by 0.9; slow weights "
         "initialised before the first step", LOCAL | {"beta": 0.6, "alpha": 0.8}, EQUAL | SINGLE | {"lr_decay": 0.9}),
    Case(
        "slowmo", "fairscale", "equal slowmo shipped", "the same, as documented (perform_slowmo after each step)",
        LOCAL | {"beta": 0.6, "alpha": 0.8}, EQUAL | SINGLE | {"lr_decay": 0.9},
        "FairScale copies its slow weights at the first perform_slowmo, after the first local step, each process its own "
        "shard.", byhand.fairscale_slowmo,
    ),
    Case("fednova", "fedlab", "fednova", "uniform, option weighted_com", LOCAL),
    Case("fednova", "flgo", "fednova", "samples", LOCAL, SAMPLES),
    Case(
        "fednova", "fluke", "fednova", "samples", LOCAL, SAMPLES,
        "fluke puts the weights p_i tau / a_i, whose sum is not 1, on the models instead of on their displacements.",
        byhand.fluke_fednova,
    ),
    Case(
        "fednova", "fluke", "fednova momentum", "local momentum 0.7, new in each round", LOCAL | {"momentum": 0.7}, {},
        "As above; the normaliser a_i with momentum is the same number in both.",
        partial(byhand.fluke_fednova, momentum=0.7, kind="uniform"),
    ),
    Case("scaffold", "fluke", "scaffold", "option II", LOCAL),
    Case("scaffold", "fedlab", "scaffold", "option II, server lr 0.7", LOCAL | {"server_lr": 0.7}),
    Case("scaffold", "flgo", "scaffold", "option II, server lr 0.7", LOCAL | {"server_lr": 0.7}),
    Case("scaffold", "flsimulator", "equal scaffold clipped", "equal K, server lr 0.8, lr decays by 0.9, clip 0.5",
         LOCAL | {"server_lr": 0.8}, DECAY | {"clip": 0.5}, within=NORM),
    Case("scaffold-alpha", "flgo", "scaffold", "alpha 1, server lr 0.7", LOCAL | {"server_lr": 0.7, "alpha": 1.0},
         via="SCAFFOLD"),
    *(
        Case(
            "scaffold", "pfl", f"scaffold {option}", f"float32, option {option}", LOCAL | {"option": option}, SINGLE,
            "pfl makes c_i from local minus global weights, which is minus a gradient, and then adds c - c_i as the paper "
            "does with gradients: its correction has the wrong sign.", partial(byhand.pfl_scaffold, option=option),
        )
        for option in ("I", "II")
    ),
    Case("vrl-sgd", "fluke", "equal scaffold", "full participation, equal K", LOCAL, EQUAL, via="SCAFFOLD"),
    Case("scaffnew", "fluke", "equal scaffold", "full participation, fixed K",
         LOCAL | {"schedule": "fixed"}, EQUAL, via="SCAFFOLD"),
    Case("mime", "fedjax", "mime sgd", "base sgd, samples, server lr 0.9",
         {"lr": 0.1, "server_lr": 0.9, "base": "sgd"}, SAMPLES),
    Case("mime", "fedjax", "mime sgdm", "base sgd(momentum=0.8); frozen=full_step", MIME | {"base": "sgdm"}, SAMPLES),
    Case("mime", "fedjax", "mime sgdm", "the same; frozen=table, lr / (1 - beta)",
         {"lr": 0.5, "server_lr": 0.9, "beta": 0.8, "base": "sgdm"}, SAMPLES),
    Case("mime", "fedjax", "mime adam", "base adam started with v = c^2 and count 2^31; frozen=full_step",
         MIME_ADAM, SAMPLES),
    Case(
        "mime", "fedjax", "mime adam shipped", "base adam as shipped; frozen=full_step", MIME_ADAM, SAMPLES,
        "optax starts at v = 0 and corrects the bias, with one count for all local steps of a round.",
        byhand.optax_mime_adam,
    ),
    Case("mimelite", "fedjax", "mimelite sgdm", "base sgd(momentum=0.8); frozen=full_step",
         MIME | {"base": "sgdm"}, SAMPLES),
    Case("mimelite", "fedjax", "mimelite adam", "base adam started with v = c^2 and count 2^31; frozen=full_step",
         MIME_ADAM, SAMPLES),
    Case("feddyn", "flgo", "feddyn", "alpha 0.3", LOCAL | {"alpha": 0.3}),
    Case(
        "feddyn", "fedlab", "feddyn", "alpha 0.3", LOCAL | {"alpha": 0.3}, {},
        "FedLab's regulariser is built from detached weights, so clients run plain SGD, and its h takes sum(x_i) - x where "
        "the paper has sum(x_i - x).", byhand.fedlab_feddyn,
    ),
    Case("fedpd", "flgo", "feddyn full", "full participation; eta 1/0.3, start global",
         LOCAL | {"eta": 1 / 0.3, "start": "global"}, {"cohorts": FULL}, via="FedDyn"),
    Case("moon", "flgo", "moon", "mu 2, temperature 0.5", LOCAL | {"mu": 2.0, "temperature": 0.5}),
    Case("moon", "fluke", "moon", "mu 2, temperature 0.5", LOCAL | {"mu": 2.0, "temperature": 0.5}),
    Case("mifa", "flgo", "mifa", "all clients in round 0, two of them later", LOCAL, {"cohorts": [FULL[0], *PARTIAL[1:]]}),
    Case(
        "mifa", "flgo", "mifa waits", "c = 1, as shipped", LOCAL, {},
        "FLGo, as the original allows, makes no step until every client was seen once; fedkeel (GradMA's form) counts "
        "unseen clients as 0.", partial(byhand.flgo_mifa, wait=True),
    ),
    Case(
        "mifa", "flgo", "mifa at once", "c = 0", LOCAL, {},
        "FLGo's mean is over the clients seen so far, fedkeel's over all.", partial(byhand.flgo_mifa, wait=False),
    ),
    Case("mifa", "fedau", "equal mifa", "equal K, server lr 0.8; the baseline of FedAU's authors",
         LOCAL | {"server_lr": 0.8}, {"equal": True}),
    # Methods of 2022 to 2026.
    Case("fedexp", "fluke", "fedexp", "eps 1e-4, average=False; its server step is rounded to float32",
         LOCAL | {"eps": 1e-4, "average": False}, within=1e-7),
    Case("fedsam", "flsimulator", "equal fedsam", "equal K, rho 0.2, server lr 0.8, lr decays by 0.9",
         SAM | {"server_lr": 0.8}, DECAY, within=NORM),
    Case(
        "fedsam", "fluke", "fedsam", "rho 0.2", SAM, {},
        "fluke does not clear the gradient of the last step, so its perturbation points along the sum of two gradients.",
        byhand.fluke_fedsam,
    ),
    Case("mofedsam", "flsimulator", "equal mofedsam", "equal K, rho 0.2, alpha 0.3, server lr 0.8, lr decays by 0.9",
         SAM | {"server_lr": 0.8, "alpha": 0.3}, DECAY, within=NORM),
    Case("fedgamma", "flsimulator", "equal fedgamma", "equal K, rho 0.2, server lr 0.8, lr decays by 0.9",
         SAM | {"server_lr": 0.8}, DECAY, within=NORM),
    Case("fedgamma", "flsimulator", "equal fedgamma clipped", "the same, clip 0.5",
         SAM | {"server_lr": 0.8}, DECAY | {"clip": 0.5}, within=NORM),
    Case("fedspeed", "flsimulator", "equal fedspeed",
         "equal K, rho 0.2, prox 0.3, lr decays by 0.9; alpha=1, dual=all, which is the method that it has under this name",
         SAM | {"prox": 0.3, "alpha": 1.0, "dual": "all"}, DECAY, within=NORM),
    Case("fedsmoo", "flsimulator", "equal fedsmoo", "equal K, rho 0.2, beta 1/0.3, lr decays by 0.9; drop_e=True",
         SAM | {"beta": 1 / 0.3, "drop_e": True}, DECAY, within=NORM),
    Case("fedacg", "fedacg", "fedacg", "lam 0.7; its weight 0.15 of the penalty without 1/2 is beta 0.3",
         LOCAL | {"lam": 0.7, "beta": 0.3}),
    Case("fedau", "fedau", "equal fedau", "equal K, no cutoff, server lr 0.8",
         LOCAL | {"cutoff": 100_000, "server_lr": 0.8}, {"equal": True}),
    Case("fedau", "fedau", "equal fedau cutoff", "the same, cutoff 2",
         LOCAL | {"cutoff": 2, "server_lr": 0.8}, {"equal": True}),
    Case("fedvarp", "fedau", "equal fedvarp", "equal K, server lr 0.8; the baseline of FedAU's authors",
         LOCAL | {"server_lr": 0.8}, {"equal": True}),
    Case("fedawe", "fedawe", "equal fedawe",
         "equal K, server lr 0.8, lr decays as 1 / sqrt(1 + t / 10); its bound 0.5 lifted",
         LOCAL | {"server_lr": 0.8}, {"equal": True, "lr_schedule": slowly}),
    Case(
        "fedawe", "fedawe", "equal fedawe bound", "the same, as shipped", LOCAL | {"server_lr": 0.8},
        {"equal": True, "lr_schedule": slowly},
        "The authors' code shortens the mean of the multiplied displacements to norm 0.5.", byhand.authors_fedawe,
    ),
    Case("fadas", "fadas", "fadas", "no delays, first maximum 1e-3, eps 0.01; bias_correction=True; the server step alone",
         ADAM | {"eps": 0.01, "v0": 0.001, "bias_correction": True}),
    Case("fadas", "fadas", "fadas from zero", "the same, first maximum 0, eps 1e-8", ADAM | {"bias_correction": True}),
    Case("fedcams", "fadas", "fedcams", "its scaled sign and server step, first maximum 1e-3; bias_correction=True",
         ADAM | {"eps": 0.001, "bias_correction": True}),
    Case("delta-sgd", "autotuned", "delta-sgd", "eta0 0.2, gamma 2, delta 0; its eps 0",
         {"eta0": 0.2, "gamma": 2.0, "delta": 0.0}),
    Case(
        "delta-sgd", "autotuned", "delta-sgd grows", "the same, delta 0.5", {"eta0": 0.2, "gamma": 2.0, "delta": 0.5}, {},
        "The authors' code lets the first step grow, too: it is eta0 sqrt(1 + delta), the listing's is eta0.",
        byhand.authors_delta_sgd,
    ),
    Case("diloco", "torch", "diloco", "AdamW kept by every client, SGD(lr=0.7, momentum=0.9, nesterov=True) on the server; "
         "OpenDiloco's pair", {"lr": 0.02, "lam": 0.1}),
    Case("fedmuon", "fedmuon", "equal fedmuon", "equal K, lr 0.02, muon_scale 3, alpha 0.3; its iteration in float64",
         {"lr": 0.02, "muon_scale": 3.0, "alpha": 0.3}, {"equal": True}),
    Case(
        "fedadamw", "fedmuon", "equal fedadamw", "equal K, lr 0.02, alpha 0.5, lam 0.1",
        {"lr": 0.02, "alpha": 0.5, "lam": 0.1}, {"equal": True},
        "The authors' code sends the whole second moment, not one mean per tensor, and corrects the bias of m by all steps "
        "so far although m starts at 0 in every round.", byhand.authors_fedadamw,
    ),
]  # fmt: skip
