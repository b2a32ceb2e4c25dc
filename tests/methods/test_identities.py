"""Identities between methods and inside them, on different quadratics in float64.

Numbers in the names of tests and in IDENTITIES are those of the section "Identities" of docs/methods.md. Letters with a
number are sections of the methods. Trajectories are compared through the engine. Inner quantities come from `Play`, which
calls the parts of a method by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedkeel as fk
from fedkeel.core.algorithm import Plan, lookup
from fedkeel.core.flat import Layers
from fedkeel.core.records import TrialSteps, ZeroGrad, down_record
from fedkeel.core.round import Round
from fedkeel.core.steps import Grad
from fedkeel.rules import gradma
from fedkeel.rules.cone_qp import cone_weights, project
from tests.reference.qp import project as brute_force
from tests.tasks import half_square, linear_clients, linear_model, minimiser, quadratic

N, D, K = 5, 7, 4
SIZES = (6, 9, 12, 8, 10)
FED = linear_clients(SIZES, D, seed=4, shift=False)
X0 = torch.linspace(-0.5, 0.7, D, dtype=torch.float64)
PROBLEMS = [tuple(torch.from_numpy(z) for z in quadratic(FED, i)) for i in range(N)]

CALM: dict[str, Any] = {"cohort": N, "local_steps": K, "batch_size": None}
HARD: dict[str, Any] = {
    "cohort": 3,
    "local_steps": None,
    "local_epochs": 2,
    "batch_size": 4,
    "lr_decay": 0.9,
}  # K_i = 4, 6, 6, 4, 6


def close(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance)


def train(algo: fk.Algorithm, rounds: int = 5, fed: fk.Federation = FED, x0: Any = X0, **settings: Any) -> fk.Run:
    settings = CALM | {"loss": half_square, "engine": "sequential", "seed": 5, "progress": False} | settings
    return fk.train(linear_model(D, bias=False, x0=x0), fed, algo, rounds=rounds, **settings)


def the(name: str, **hp: Any) -> fk.Algorithm:
    return fk.algorithm(name, **hp)


# One method is another ------------------------------------------------------------------------------------------------

# (number, one method, the other, conditions: all = all clients take part, equal = the same K for all clients,
#  constant = no decay of lr, K=1). `same=` of the methods has some of these with default values. This table has other
# values, and more rounds and settings, so that an error in a term that vanishes by default shows, too.
IDENTITIES: list[tuple[str, fk.Algorithm, fk.Algorithm, str]] = [
    ("A1", the("fedsgd"), the("fedavg"), "K=1"),
    ("1", the("fedprox", mu=0.0), the("fedavg"), ""),
    ("1", the("fedprox", mu=0.7), the("fedavg"), "K=1"),
    ("2", the("fedavgm", beta1=0.0, server_lr=0.7), the("fedavg", server_lr=0.7), ""),
    ("2", the("slowmo", beta=0.6, alpha=0.8), the("fedavgm", beta1=0.6, server_lr=0.8), "constant"),
    ("A6", the("slowmo", beta=0.0), the("fedavg"), ""),
    ("A7", the("fedproxm", mu=0.0, beta1=0.6), the("fedavgm", beta1=0.6), ""),
    ("A7", the("fedproxm", mu=0.3, beta1=0.0), the("fedprox", mu=0.3), ""),
    ("3", the("fednova"), the("fedavg"), "equal"),
    ("A4", the("fednova", beta=0.6), the("slowmo", beta=0.6), "equal"),
    ("4b", the("fedadam-amended", alpha=1.0), the("fedadam"), ""),
    ("5", the("fedlada", alpha=1.0, lr=0.02), the("local-adam-shared", lr=0.02), ""),
    ("9", the("scaffold-alpha", alpha=0.0), the("fedavg"), ""),
    ("9", the("scaffold-alpha", alpha=1.0), the("scaffold"), ""),
    ("10", the("vrl-sgd"), the("scaffold"), "all equal"),
    ("10", the("scaffnew", schedule="fixed"), the("vrl-sgd"), "all equal"),
    ("D4", the("scaffold-m", beta=1.0, server_lr=0.8), the("scaffold", server_lr=0.8), "equal"),
    ("D5", the("scaffold-m-vr", beta=1.0), the("scaffold-m", beta=1.0), ""),
    ("12", the("padamfed", beta=1.0, lr=0.03, gamma=0.1), the("scaffold-normalized", lr=0.03, gamma=0.1), ""),
    ("12", the("padamfed-vr", beta=1.0, lr=0.03, gamma=0.1), the("padamfed", beta=1.0, lr=0.03, gamma=0.1), ""),
    ("D8", the("fadamet", tracking=0, lr=0.02), the("local-adam", lr=0.02), ""),
    ("D9", the("fadamgt", tracking=0, lr=0.02), the("local-adam", lr=0.02), ""),
    ("16", the("fedcm", alpha=1.0), the("fedavg"), ""),
    ("16", the("fedadc", beta_g=0.6, beta_l=0.6, lr=0.02), the("fedcm", alpha=0.4, lr=0.05), "equal"),
    ("16", the("fedadc", beta_g=0.6, beta_l=0.0, lr=0.05), the("fedavgm", beta1=0.6, lr=0.05), "constant"),
    ("16", the("fedadc", beta_g=0.0, beta_l=0.0), the("fedavg", lr=0.01), ""),
    ("17", the("mimelite", base="sgd"), the("fedavg"), ""),
    ("17", the("mimelite", base="sgdm", beta=0.0), the("fedavg"), ""),
    ("18", the("domo", beta_f=0.0, mu_l=0.0, mu_s=0.6, server_lr=0.8), the("slowmo", beta=0.6, alpha=0.8, lr=0.01), "equal"),
    ("18", the("domo", beta_f=0.0, mu_l=0.0, mu_s=0.6), the("fedavgm", beta1=0.6, lr=0.01), "equal constant"),
    ("E5", the("domo", beta_f=0.0, mu_l=0.5, mu_s=0.6), the("slowmo", beta=0.6, momentum=0.5, lr=0.01), "equal"),
    ("19", the("feddyn", alpha=0.5), the("fedpd", eta=2.0, start="global"), "all"),
    ("21", the("mifa", server_lr=0.8), the("fedavg", server_lr=0.8), "all"),
    ("21", the("mifam", beta1=0.6), the("fedavgm", beta1=0.6), "all"),
    ("21", the("mifam", beta1=0.0), the("mifa"), ""),
    ("22", the("gradma-s", memory=0, beta1=0.6), the("fedavgm", beta1=0.6), ""),
    ("G5", the("gradma", memory=0, beta1=0.0), the("gradma-w"), ""),
    ("25", the("fedexp", lr=0.1, eps=1e12, average=False), the("fedavg"), ""),
    ("26", the("fedacg", lam=0.0, beta=0.3), the("fedprox", mu=0.3), ""),
    ("27", the("fedsam", rho=0.0, server_lr=0.8), the("fedavg", server_lr=0.8), ""),
    ("27", the("fedlesam", rho=0.0, server_lr=0.8), the("fedavg", server_lr=0.8), ""),
    ("27", the("mofedsam", rho=0.0, alpha=0.3), the("fedcm", alpha=0.3), ""),
    ("27", the("mofedsam", rho=0.3, alpha=1.0), the("fedsam", rho=0.3), ""),
    ("27", the("fedgamma", rho=0.0, server_lr=0.8), the("scaffold", server_lr=0.8), ""),
    ("28", the("fedspeed", rho=0.0, prox=0.5), the("feddyn", alpha=0.5), "all"),
    ("28", the("fedspeed", alpha=0.0, prox=0.5), the("feddyn", alpha=0.5), "all"),
    ("28", the("fedspeed", rho=0.0, prox=0.5, dual="all"), the("feddyn", alpha=0.5), ""),
    ("28", the("fedsmoo", rho=0.0, beta=2.0), the("feddyn", alpha=0.5), ""),
    ("29", the("fedvarp", server_lr=0.8), the("fedavg", server_lr=0.8), "all"),
    ("29", the("fedvarp"), the("mifa"), "all"),
    ("29", the("fedau", server_lr=0.8), the("fedavg", server_lr=0.8), "all"),
    ("30", the("delta-sgd", gamma=1e30, delta=0.0, eta0=0.05), the("fedavg", lr=0.05), "constant"),
    ("30", the("delta-sgd", eta0=0.05), the("fedavg", lr=0.05), "K=1 constant"),
    ("I14", the("diloco", inner="sgd", momentum=0.0, lr=0.05), the("fedavg", lr=0.05, server_lr=0.7), ""),
]


def scenarios() -> Iterator[Any]:
    for number, one, other, needs in IDENTITIES:
        calm, hard = dict(CALM), dict(HARD)
        if "all" in needs:
            hard["cohort"] = N
        if "equal" in needs:
            hard |= {"local_steps": K, "batch_size": 3}
        if "constant" in needs:
            hard["lr_decay"] = 1.0
        if "K=1" in needs:
            calm, hard = calm | {"local_steps": 1}, hard | {"local_steps": 1}
        cases = {"calm": calm, "hard": hard, "weighted": hard | {"weights": "samples"}}
        for kind, settings in cases.items():
            if kind != "weighted" or not (one.facts.uniform or other.facts.uniform):
                yield pytest.param(one, other, settings, id=f"{number}-{one.name}-{other.name}-{kind}")


@pytest.mark.parametrize(("one", "other", "settings"), list(scenarios()))
def test_one_method_is_another(one: fk.Algorithm, other: fk.Algorithm, settings: dict[str, Any]) -> None:
    a, b = train(one, **settings), train(other, **settings)
    assert (a.params - X0).norm() > 1e-3, "nothing happened"
    close(a.params, b.params)
    close([row["train_loss"] for row in a.history], [row["train_loss"] for row in b.history])


# Control variates follow the steps that were taken, so these pairs are the same methods also in runs that clip.
CLIPPED_PAIRS = [
    (the("vrl-sgd"), the("scaffold"), {"cohort": N, "local_steps": K, "batch_size": 3}),
    (the("scaffnew", schedule="fixed"), the("scaffold"), {"cohort": N, "local_steps": K, "batch_size": 3}),
    (the("scaffold-alpha", alpha=1.0), the("scaffold"), {}),
    (the("scaffold-m", beta=1.0, server_lr=0.8), the("scaffold", server_lr=0.8), {"local_steps": K, "batch_size": 3}),
    (the("fedgamma", rho=0.0), the("scaffold"), {}),
    (the("fedit-adamgt", lr=0.02, server_lr=1.0), the("fadamgt", lr=0.02), {}),
]


@pytest.mark.parametrize(("one", "other", "settings"), [pytest.param(*p, id=p[0].name) for p in CLIPPED_PAIRS])
def test_one_method_is_another_with_clipping(one: fk.Algorithm, other: fk.Algorithm, settings: dict[str, Any]) -> None:
    settings = HARD | settings
    a, b = train(one, clip=0.5, **settings), train(other, clip=0.5, **settings)
    assert (a.params - train(one, **settings).params).norm() > 1e-3, "nothing was clipped"
    close(a.params, b.params)


# Such pairs with a setting that breaks the identity. So the test above can fail.
BROKEN: list[tuple[str, fk.Algorithm, fk.Algorithm, dict[str, Any]]] = [
    ("1", the("fedprox", mu=0.7), the("fedavg"), {}),
    ("2", the("slowmo", beta=0.6), the("fedavgm", beta1=0.6), {"lr_decay": 0.9}),
    ("3", the("fednova"), the("fedavg"), {"local_steps": None, "local_epochs": 1, "batch_size": 4}),
    ("4b", the("fedadam-amended", alpha=0.9), the("fedadam"), {}),
    ("9", the("scaffold-alpha", alpha=0.9), the("scaffold"), {}),
    ("10", the("vrl-sgd", allow_partial=True), the("scaffold"), {"cohort": 3}),
    ("12", the("padamfed-vr", beta=0.5, lr=0.03, gamma=0.1), the("padamfed", beta=0.5, lr=0.03, gamma=0.1), {}),
    ("17", the("mimelite", base="sgdm", beta=0.5), the("fedavg"), {}),
    ("18", the("domo", beta_f=0.5, mu_l=0.0, mu_s=0.6), the("fedavgm", beta1=0.6, lr=0.01), {}),
    ("19", the("feddyn", alpha=0.5), the("fedpd", eta=2.0, start="warm"), {}),
    ("21", the("mifa"), the("fedavg"), {"cohort": 3}),
    ("22", the("gradma-s", memory=5, beta1=0.6), the("fedavgm", beta1=0.6), {}),
    ("25", the("fedexp", lr=0.1, average=False), the("fedavg"), {}),
    ("26", the("fedacg", lam=0.5, beta=0.0), the("fedavgm", beta1=0.5), {}),
    ("27", the("fedlesam", rho=0.1), the("fedavg"), {}),
    ("28", the("fedspeed", rho=0.0, prox=0.5), the("feddyn", alpha=0.5), {"cohort": 3}),
    ("29", the("fedvarp"), the("fedavg"), {"cohort": 3}),
    ("29", the("fedvarp"), the("mifa"), {"cohort": 3}),
    ("29", the("fedau"), the("fedavg"), {"cohort": 3}),
    ("30", the("delta-sgd", eta0=0.05), the("fedavg", lr=0.05), {}),
]


@pytest.mark.parametrize(("one", "other", "settings"), [pytest.param(*b[1:], id=f"{b[0]}-{b[1].name}") for b in BROKEN])
def test_other_settings_break_the_identity(one: fk.Algorithm, other: fk.Algorithm, settings: dict[str, Any]) -> None:
    assert (train(one, **settings).params - train(other, **settings).params).norm() > 1e-5


def test_4_fedyogi_starts_like_fedadam() -> None:
    for rounds, same in ((1, True), (4, False)):
        yogi, adam = (train(the(name, v0=0.0), rounds, **HARD).params for name in ("fedyogi", "fedadam"))
        assert torch.allclose(yogi, adam, rtol=0, atol=1e-9) == same


def test_7b_fed_lamb_without_its_layer_norms_is_fed_ams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkeel.methods.fed_lamb.layer_unit", lambda u, x, layers: u)
    lamb = train(the("fed-lamb", lam=0.0, eps=1.0, lr=0.05), **HARD)
    ams = train(the("fed-ams", eps=1.0, lr=0.05, first_round="frozen"), **HARD)
    close(lamb.params, ams.params)
    close(lamb.server.v_hat, ams.server.v_hat)
    assert (ams.params - train(the("fed-ams", eps=1.0, lr=0.05), **HARD).params).norm() > 1e-5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (the("gradma", memory=0, beta1=0.6), the("fedavgm", beta1=0.6)),
        (the("gradma", beta1=0.6), the("gradma-s", beta1=0.6)),
        (the("gradma-w"), the("fedavg")),
    ],
)
def test_22_gradma_without_the_workers_projection(
    one: fk.Algorithm, other: fk.Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = train(one, **HARD).params
    monkeypatch.setattr("fedkeel.rules.gradma.project", lambda p, columns: p)
    close(train(one, **HARD).params, train(other, **HARD).params)
    assert (before - train(other, **HARD).params).norm() > 1e-5


# A method is a central one --------------------------------------------------------------------------------------------


def central_gradient(x: Tensor) -> Tensor:
    return sum((A @ x - b for A, b in PROBLEMS), torch.zeros(D, dtype=torch.float64)) / N


@pytest.mark.parametrize("algo", [the("scaffold"), the("fedsgd"), the("fedavg"), the("mime", base="sgd"), the("vrl-sgd")])
def test_23_one_step_of_all_clients_is_gradient_descent(algo: fk.Algorithm) -> None:
    x = X0
    for _ in range(8):
        x = x - 0.1 * central_gradient(x)
    close(train(algo, 8, local_steps=1).params, x)


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("frozen", ["table", "full_step"])
def test_17_mime_with_one_step_is_central_momentum(frozen: str, batch_size: int | None) -> None:
    x, m = X0, torch.zeros(D, dtype=torch.float64)
    for _ in range(6):
        m = (0.3 if frozen == "table" else 1.0) * central_gradient(x) + 0.7 * m
        x = x - 0.05 * m
    hp = {"base": "sgdm", "beta": 0.7, "lr": 0.05, "frozen": frozen}
    close(train(the("mime", **hp), 6, local_steps=1, batch_size=batch_size).params, x)
    if batch_size is None:  # MimeLite's step is on its own mini-batch
        close(train(the("mimelite", **hp), 6, local_steps=1).params, x)


@pytest.mark.parametrize(("name", "frozen"), [("mime", "table"), ("mime", "full_step"), ("mimelite", "table")])
def test_17_mime_with_one_step_is_central_adam(name: str, frozen: str) -> None:
    x, m, v = X0, torch.zeros(D, dtype=torch.float64), central_gradient(X0) ** 2
    for _ in range(6):
        g = central_gradient(x)
        m, v_new = 0.2 * g + 0.8 * m, 0.1 * g**2 + 0.9 * v
        x = x - 0.05 * m / ((v_new if frozen == "full_step" else v).sqrt() + 0.01)
        v = v_new
    hp = {"base": "adam", "beta1": 0.8, "beta2": 0.9, "eps": 0.01, "lr": 0.05, "frozen": frozen}
    close(train(the(name, **hp), 6, local_steps=1).params, x)


def amsgrad(gradient: Any, x: Tensor, steps: int, lr: float, beta1: float, beta2: float, eps: float) -> Tensor:
    m, v, v_hat = (torch.zeros_like(x) for _ in range(3))
    for _ in range(steps):
        g = gradient(x)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        v_hat = torch.maximum(v_hat, v)
        x = x - lr * m / (v_hat.sqrt() + eps)
    return x


ALONE = fk.Federation.from_arrays([(FED[2].x, FED[2].y)])


def alone_gradient(x: Tensor) -> Tensor:
    return PROBLEMS[2][0] @ x - PROBLEMS[2][1]


def test_15_fadamgt_alone_is_amsgrad() -> None:
    first = train(the("fadamgt", lr=0.05, beta1=0.8), 1, ALONE, cohort=1, local_steps=12)
    close(first.params, amsgrad(alone_gradient, X0, 12, 0.05, 0.8, 0.99, 1e-8))
    kept = train(the("fadamgt", lr=0.05, beta1=0.0, persist_vhat=True), 5, ALONE, cohort=1)
    close(kept.params, amsgrad(alone_gradient, X0, 5 * K, 0.05, 0.0, 0.99, 1e-8))
    restarted = train(the("fadamgt", lr=0.05, beta1=0.0), 5, ALONE, cohort=1)
    assert (restarted.params - kept.params).norm() > 1e-6


def test_C6_adaalter_alone_is_adagrad_with_a_late_denominator() -> None:
    x, v = X0, torch.zeros(D, dtype=torch.float64)
    for _ in range(6):
        g = alone_gradient(x)
        x, v = x - 0.3 * g / (v + 0.5).sqrt(), v + g**2
    run = train(the("adaalter", lr=0.3, eps=0.5), 6, ALONE, cohort=1, local_steps=1)
    close(run.params, x)
    close(run.server.v, v)


def test_C7_fedadt_without_derivative_is_adam_of_one_round() -> None:
    x, m, v = X0, torch.zeros(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
    for _ in range(K):
        g = alone_gradient(x)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        x = x - 0.02 * m / (v.sqrt() + 1e-8)
    close(train(the("fedadt", lam_d=0.0, lr=0.02), 1, ALONE, cohort=1).params, x)
    assert (train(the("fedadt", lam_d=0.1, lr=0.02), 1, ALONE, cohort=1).params - x).norm() > 1e-6


def test_C8_fedsps_takes_polyaks_step_or_the_cap() -> None:
    settings = HARD | {"lr_decay": 1.0}
    close(train(the("fedsps", eta_b=0.01), **settings).params, train(the("fedavg", lr=0.01), **settings).params)
    play, capped = Play(the("fedsps", c=20.0, eta_b=0.1, l_star=-9.0), S=3), set()
    for _ in range(3):
        ids, steps = play.round()
        for i, work in zip(ids, steps, strict=True):
            A, b = PROBLEMS[i]
            for w, g, after in zip(work.points, work.gradients, work.points[1:], strict=False):
                polyak = float((0.5 * w @ A @ w - b @ w + 9.0) / (20.0 * g @ g))
                close(after, w - min(polyak, 0.1) * g)
                capped.add(polyak > 0.1)
    assert capped == {True, False}
    # f = x^2 / 2: the loss over c ||g||^2 is 1 for c = 1/2, so the first step jumps to 0 unless the cap is lower.
    parabola = fk.Federation.from_arrays([(np.eye(D) * D**0.5, np.zeros((D, 1)))])
    for cap, left in ((1.0, 0.0), (0.25, 0.75**K)):
        run = train(the("fedsps", eta_b=cap), 1, parabola, cohort=1)
        close(run.params, left * X0)


def test_B1_fedadagrad_starts_with_unit_steps() -> None:
    moved = train(the("fedavg"), 1, **HARD).params - X0
    step = train(the("fedadagrad", v0=0.0, tau=0.01, server_lr=0.3), 1, **HARD).params - X0
    close(step.abs(), 0.3 * moved.abs() / (moved.abs() + 0.01))


# Inside a method ------------------------------------------------------------------------------------------------------


class Batch(ZeroGrad):
    """A gradient A w - b that remembers the points at which it was computed."""

    steps: Local

    def __init__(self, steps: Local, A: Tensor, b: Tensor) -> None:
        self.steps, self.A, self.b = steps, A, b
        steps.asked.append([])

    def __call__(self, w: Tensor) -> Tensor:
        g = self.A @ w - self.b
        self.steps.asked[-1].append((w.clone(), g.clone()))
        return g

    def loss(self, w: Tensor) -> Tensor:
        return (0.5 * w @ self.A @ w - self.b @ w).reshape(1)


class Local(TrialSteps):
    """The local steps of a client whose loss is a quadratic; `asked[k]` holds (point, gradient) of step k."""

    def __init__(
        self,
        A: Tensor,
        b: Tensor,
        K: int,
        t: int = 0,
        noise: Tensor | None = None,
        layers: Sequence[int] = (D,),
        **roles: float,
    ) -> None:
        super().__init__(Layers(layers), list(roles), torch.float64)
        for role, value in roles.items():
            setattr(self.drawn, role, torch.tensor([value], dtype=torch.float64))
        self.A, self.b, self.K, self.t = A, b, K, t
        self.noise = torch.zeros(K, len(b), dtype=torch.float64) if noise is None else noise
        self.asked: list[list[tuple[Tensor, Tensor]]] = []

    def __iter__(self) -> Iterator[Grad]:
        for k in range(self.K):
            yield Batch(self, self.A, self.b + self.noise[k])

    def full_grad(self, w: Tensor) -> Tensor:
        return self.A @ w - self.b

    @property
    def points(self) -> list[Tensor]:
        """The local iterates: the points of the first gradient of every step."""
        return [calls[0][0] for calls in self.asked]

    @property
    def gradients(self) -> list[Tensor]:
        return [calls[0][1] for calls in self.asked]


class Play:
    """Rounds of a method by hand."""

    def __init__(
        self, algo: fk.Algorithm, x: Tensor = X0, problems: Sequence[Any] = PROBLEMS, S: int = N, decay: float = 1.0,
        noise: float = 0.0, layers: Sequence[int] = (D,),
    ) -> None:  # fmt: skip
        self.problems, self.decay, self.noise, self.layers, self.t = problems, decay, noise, layers, 0
        self.algo = algo.plan(Plan(N=N, S=S, K=K, T=10))
        self.S, self.rng = S, np.random.default_rng(7)
        self.server, mem = self.algo.init(x)
        self.mems: list[Any] = [mem] * N
        if self.algo.warms_up():
            self.exchange("warmup", "warmup_server", -1, list(range(N)))

    def exchange(self, stage: str, step: str, t: int, ids: list[int]) -> list[Local]:
        algo = self.algo.at(t, self.decay)
        drawn = algo.draw(np.random.default_rng(t + 1), ids)
        steps, ups = [], []
        for j, i in enumerate(ids):
            noise = torch.from_numpy(self.noise * self.rng.normal(size=(K, D)))
            roles = {name: float(z[j]) for name, z in drawn.items() if name != "K"}
            work = Local(*self.problems[i], K, t, noise, self.layers, **roles)
            up, self.mems[i] = getattr(algo, stage)(down_record(algo, self.server), self.mems[i], work)
            steps.append(work)
            ups.append(up)
        stack = type(ups[0])(*(torch.stack(z) for z in zip(*ups, strict=True)))
        S = len(ids)
        share = torch.full((S,), 1 / N, dtype=torch.float64)
        roles = SimpleNamespace(**{name: torch.from_numpy(z).double() for name, z in drawn.items()})
        p, K_all = torch.full((S,), 1 / S, dtype=torch.float64), torch.full((S,), float(K), dtype=torch.float64)
        self.server = getattr(algo, step)(self.server, stack, Round(t, N, torch.tensor(ids), K_all, p, share, roles))
        return steps

    def round(self) -> tuple[list[int], list[Local]]:
        """One round -> the participants and their local steps."""
        ids = sorted(self.rng.permutation(N)[: self.S].tolist())
        survey = self.exchange("survey", "survey_server", self.t, ids) if self.algo.surveys(self.t) else []
        steps = self.exchange("client", "server", self.t, ids)
        self.t += 1
        return ids, steps if any(work.points for work in steps) else survey  # FedAWE trains in the survey


def mean(z: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(z)).mean(0)


# Methods whose server keeps the mean of a client field: the server's field and the clients'.
MEANS = [
    (the("scaffold", option="I"), "c", "c"),
    (the("scaffold", option="II"), "c", "c"),
    (the("scaffold-alpha"), "c", "c"),
    (the("scaffold-normalized"), "c", "c"),
    (the("scaffold-m"), "c", "c"),
    (the("scaffold-m-vr", start="warmup"), "c", "c"),
    (the("padamfed"), "c", "c"),
    (the("padamfed-vr"), "c", "c"),
    (the("fadamet", tracking=2), "y", "y"),
    (the("fadamgt", tracking=2), "y", "y"),
    (the("feddyn"), "h", "lam"),
    (the("mifa"), "D", "u"),
    (the("mifam"), "D", "u"),
]


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize(("algo", "ours", "theirs"), [pytest.param(*m, id=f"{m[0].name}-{n}") for n, m in enumerate(MEANS)])
def test_8_11_14_the_server_holds_the_mean_of_its_clients(algo: fk.Algorithm, ours: str, theirs: str, weights: str) -> None:
    weights = "uniform" if algo.facts.uniform else weights
    counts = torch.tensor(SIZES if weights == "samples" else [1] * N, dtype=torch.float64)
    for rounds in (1, 2, 6):
        run = train(algo, rounds, **HARD, weights=weights)
        kept = [run.clients[i] for i in range(N)]
        total = sum(n * getattr(mem, theirs) for n, mem in zip(counts, kept, strict=True) if mem is not None)
        close(getattr(run.server, ours), total / counts.sum())
        assert getattr(run.server, ours).norm() > 1e-3


@pytest.mark.parametrize("name", ["scaffold", "scaffold-alpha", "scaffold-m", "scaffold-m-vr", "padamfed", "padamfed-vr"])
def test_8_a_control_variate_is_the_mean_gradient(name: str) -> None:
    play = Play(the(name), S=3, noise=0.3, decay=0.9)
    for _ in range(4):
        ids, steps = play.round()
        for i, work in zip(ids, steps, strict=True):
            close(play.mems[i].c, mean(work.gradients))


CLIPPED_VARIATES = [
    the("scaffold", lr=0.05), the("scaffold-alpha", lr=0.05), the("fedgamma", lr=0.05), the("fadamgt", lr=0.001),
]  # fmt: skip


@pytest.mark.parametrize("algo", CLIPPED_VARIATES, ids=lambda algo: algo.name)
def test_8_clipping_bounds_the_control_variates(algo: fk.Algorithm) -> None:
    """A direction is at most clip long, so c_i + (its correction) is, too. These clients' gradients are far longer."""
    field = "y" if algo.name == "fadamgt" else "c"
    settings = HARD | {"clip": 0.01, "cohort": N, "lr_decay": 1.0}
    for rounds in (1, 2, 6):
        before = train(algo, rounds - 1, **settings) if rounds > 1 else None
        run = train(algo, rounds, **settings)
        for i in range(N):
            correction = 0.0 if before is None else getattr(before.server, field) - getattr(before.clients[i], field)
            weight = getattr(algo, "alpha", 1.0)
            assert (getattr(run.clients[i], field) + weight * correction).norm() <= 0.01 * (1 + 1e-9)
        assert getattr(run.server, field).norm() > 1e-4


def test_8_clip_that_never_acts_changes_nothing() -> None:
    for algo in CLIPPED_VARIATES:
        close(train(algo, **HARD, clip=1e6).params, train(algo, **HARD).params)


def test_8_scaffold_both_forms_of_option_ii_agree() -> None:
    play = Play(the("scaffold"), S=3, noise=0.3, decay=0.9)
    for t in range(4):
        before, mems = play.server, list(play.mems)
        ids, steps = play.round()
        for i, work in zip(ids, steps, strict=True):
            lr = 0.1 * 0.9**t
            end = work.points[-1] - lr * (work.gradients[-1] + before.c - mems[i].c)
            close(play.mems[i].c, mems[i].c - before.c + (before.x - end) / (K * lr))


def test_10_the_correction_of_vrl_sgd_is_scaffolds() -> None:
    settings = HARD | {"cohort": N, "local_steps": K}
    for rounds in (1, 4):
        scaffold = train(the("scaffold"), rounds, **settings)
        for name, hp in (("vrl-sgd", {}), ("scaffnew", {"schedule": "fixed"})):
            run = train(the(name, **hp), rounds + 1, **settings)  # a round later, the correction is up to date
            h = [run.clients[i].h for i in range(N)]
            for i in range(N):
                close(h[i], scaffold.clients[i].c - scaffold.server.c)
            close(sum(h), torch.zeros(D, dtype=torch.float64))


def test_D11_scaffnew_draws_one_geometric_length_for_all() -> None:
    algo = the("scaffnew").plan(Plan(N=N, S=N, K=K, T=1))
    drawn = np.stack([algo.draw(np.random.default_rng(t), range(N))["K"] for t in range(4000)])
    assert (drawn == drawn[:, :1]).all()
    assert drawn.min() == 1
    assert drawn[:, 0].mean() == pytest.approx(K, rel=0.05)
    assert drawn[:, 0].var() == pytest.approx(K * (K - 1), rel=0.15)  # (1 - p) / p^2
    run = train(the("scaffnew"), 8, batch_size=3, lr_decay=0.9)
    close(sum(run.clients[i].h for i in range(N)), torch.zeros(D, dtype=torch.float64))


def test_D9_full_participation_is_required() -> None:
    for name in ("vrl-sgd", "scaffnew", "fedpd", "fafed"):
        with pytest.raises(ValueError, match=f"{name}: a cohort of 3 is not allowed; it must be all 5 clients"):
            train(the(name), cohort=3)
        assert torch.isfinite(train(the(name, allow_partial=True), cohort=3).params).all()


def amsgrad_directions(gradients: Sequence[Tensor], v: Tensor, beta1: float, beta2: float, eps: float) -> list[Tensor]:
    m, v_hat, out = torch.zeros_like(v), v, []
    for g in gradients:
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        v_hat = torch.maximum(v_hat, v)
        out.append(m / (v_hat.sqrt() + eps))
    return out


@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_6_fedlada_recursion_of_the_direction(decay: float) -> None:
    play = Play(the("fedlada", alpha=0.3, lr=0.02, server_lr=0.9), S=3, noise=0.3, decay=decay)
    x_prev = play.server.x  # of the round before
    for _ in range(5):
        old = play.server
        _, steps = play.round()
        new = play.server
        u = [amsgrad_directions(work.gradients, old.v, 0.9, 0.99, 0.0) for work in steps]
        u_mean = mean([mean(z) for z in u])
        close(new.ga, 0.3 * u_mean + 0.7 * old.ga)
        assert (new.v >= old.v * (1 - 1e-12)).all()
        assert (new.v >= 1e-16).all()
        if decay == 1.0:
            z_old, z_new = (a / 0.3 - 0.7 / 0.3 * b for a, b in ((old.x, x_prev), (new.x, old.x)))
            close(z_new, z_old - 0.9 * 0.02 * K * u_mean)
        x_prev = old.x


def test_C3_fedlada_does_not_move_without_its_local_direction() -> None:
    close(train(the("fedlada", alpha=0.0), **HARD).params, X0)


@pytest.mark.parametrize("name", ["fed-lamb", "mime-lamb"])
def test_7_every_layer_moves_by_lr_times_its_norm(name: str) -> None:
    sizes = (3, 2, 2)
    x = X0.clone()
    x[3:5] = 0  # a layer that begins at zero moves by lr
    play = Play(the(name, lr=0.05, lam=0.1), x, S=3, noise=0.3, layers=sizes)
    for _ in range(3):
        _, steps = play.round()
        for work in steps:
            for before, after in zip(work.points, work.points[1:], strict=False):
                for a, b in zip(before.split(sizes), after.split(sizes), strict=True):
                    close((b - a).norm(), 0.05 * (a.norm() if a.norm() > 0 else torch.ones((), dtype=torch.float64)))


@pytest.mark.parametrize("name", ["padamfed", "padamfed-vr", "scaffold-normalized"])
def test_11_unit_steps(name: str) -> None:
    lr, gamma = 0.03, 0.1
    play = Play(the(name, lr=lr, gamma=gamma), S=3, noise=0.3)
    for _ in range(5):
        x = play.server.x
        _, steps = play.round()
        for work in steps:
            path = torch.stack(work.points)
            close((path[1:] - path[:-1]).norm(dim=1), torch.full((K - 1,), lr, dtype=torch.float64))
            assert (path - x).norm(dim=1).mean() <= lr * K / 2
        assert 0 < (play.server.x - x).norm() <= gamma + 1e-12


@pytest.mark.parametrize("name", ["padamfed", "padamfed-vr", "scaffold-m", "scaffold-m-vr"])
def test_11_momentum_is_the_mean_direction(name: str) -> None:
    beta = 0.4
    play = Play(the(name, lr=0.03, gamma=0.1, beta=beta), S=3, noise=0.3)
    x_prev = X0
    for _ in range(5):
        old, mems = play.server, list(play.mems)
        close(old.b, beta * old.c + (1 - beta) * old.g)
        ids, steps = play.round()
        u = []
        for i, work in zip(ids, steps, strict=True):
            for (_, g), *second in work.asked:
                if name.endswith("vr"):
                    close(second[0][0], x_prev)
                fresh = old.g - (second[0][1] if name.endswith("vr") else g)
                u.append(g + beta * (old.c - mems[i].c) + (1 - beta) * fresh)
        close(play.server.g, mean(u))
        x_prev = old.x


def test_D7_the_printed_momentum_of_padamfed_vr_is_algorithm_1s() -> None:
    play = Play(the("padamfed-vr", variant="listing", beta=0.4), S=3, noise=0.3)
    for _ in range(3):
        old, mems = play.server, list(play.mems)
        ids, _ = play.round()
        close(play.server.g, 0.4 * (mean([play.mems[i].c - mems[i].c for i in ids]) + old.c) + 0.6 * old.g)


def test_D6_theory_step_sizes() -> None:
    p = Plan(N=100, S=10, K=10, T=400)
    algo, vr = the("padamfed").plan(p), the("padamfed-vr").plan(p)
    close([algo.lr, algo.gamma, algo.beta], [0.005, 0.035355, 0.5], 1e-6)
    close([vr.lr, vr.gamma, vr.beta], [2.5e-4, 0.085499, 0.085499], 1e-6)
    assert the("padamfed").plan(Plan(N=100, S=10, K=10, T=50)).beta == 1.0


@pytest.mark.parametrize("name", ["padamfed", "padamfed-vr", "scaffold-normalized"])
@pytest.mark.parametrize("scale", [1e-3, 250.0])
def test_13_the_scale_of_the_loss_does_not_matter(name: str, scale: float) -> None:
    def scaled(output: Tensor, target: Tensor) -> Tensor:
        return scale * half_square(output, target)

    close(train(the(name), **HARD).params, train(the(name), **HARD, loss=scaled).params)
    assert (train(the("fedavg"), **HARD).params - train(the("fedavg"), **HARD, loss=scaled).params).norm() > 1e-3


def test_14_fadamet_tracks_the_mean_adam_direction() -> None:
    play = Play(the("fadamet", lr=0.02), S=3, noise=0.3, decay=0.9)
    for _ in range(4):
        mems = list(play.mems)
        ids, steps = play.round()
        for i, work in zip(ids, steps, strict=True):
            close(play.mems[i].y, mean(amsgrad_directions(work.gradients, mems[i].v, 0.9, 0.99, 1e-8)))


def test_D8_fadamet_moves_by_the_mean_of_what_it_tracks() -> None:
    play = Play(the("fadamet", lr=0.02))
    for _ in range(4):
        x = play.server.x
        play.round()
        close(play.server.x, x - 0.02 * K * mean([mem.y for mem in play.mems]))


@pytest.mark.parametrize(
    ("hp", "a"), [({}, K), ({"momentum": 0.6}, sum((1 - 0.6**n) / 0.4 for n in range(1, K + 1))), ({"mu": 0.5}, None)]
)
def test_3_fednovas_normaliser_counts_constant_gradients(hp: dict[str, float], a: float | None) -> None:
    g = torch.arange(1.0, D + 1, dtype=torch.float64)
    algo = the("fednova", lr=0.1, **hp)
    server, _ = algo.init(X0)
    up, _ = algo.client(server, None, Local(torch.zeros(D, D, dtype=torch.float64), -g, K))
    close(up.dx, -0.1 * up.a * g)
    close(float(up.a), sum((1 - 0.1 * 0.5) ** k for k in range(K)) if a is None else float(a))


@pytest.mark.parametrize("hp", [{}, {"momentum": 0.6}, {"mu": 0.5}])
@pytest.mark.parametrize("counts", [(4, 4, 4), (1, 7, 4)])
def test_A4_a_clients_steps_do_not_change_its_weight(counts: tuple[int, ...], hp: dict[str, float]) -> None:
    """Constant gradients: the server moves along their mean, however many steps each client took."""
    algo = the("fednova", **hp)
    server, _ = algo.init(X0)
    flat = torch.zeros(D, D, dtype=torch.float64)
    ups = [algo.client(server, None, Local(flat, -PROBLEMS[i][1], n))[0] for i, n in enumerate(counts)]
    stack = type(ups[0])(*(torch.stack(z) for z in zip(*ups, strict=True)))
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    steps = torch.tensor(counts, dtype=torch.float64)
    moved = algo.server(server, stack, Round(0, N, torch.arange(3), steps, third, third, SimpleNamespace())).x - X0
    tau = steps.mean() if "mu" in hp else stack.a.mean()
    close(moved, -0.1 * tau * mean([b for _, b in PROBLEMS[:3]]))


def test_A4_fednova_refuses_momentum_with_a_proximal_term() -> None:
    with pytest.raises(ValueError, match="mu"):
        the("fednova", momentum=0.5, mu=0.1)


def test_16_fedcm_keeps_the_mean_mixed_direction() -> None:
    play = Play(the("fedcm", alpha=0.3), S=3, noise=0.3, decay=0.9)
    for _ in range(4):
        old = play.server.g
        _, steps = play.round()
        close(play.server.g, 0.3 * mean([mean(work.gradients) for work in steps]) + 0.7 * old)


def test_E3_mimes_statistics_never_see_local_iterates() -> None:
    play = Play(the("mime", base="adam", lr=0.05), S=3, noise=0.3)
    for t in range(4):
        x, m, v = play.server.x, play.server.m, play.server.v
        ids, _ = play.round()
        c = mean([PROBLEMS[i][0] @ x - PROBLEMS[i][1] for i in ids])
        close(play.server.c, c)
        close(play.server.m, 0.1 * c + 0.9 * m)
        close(play.server.v, 0.01 * c**2 + 0.99 * (v if t else c**2))


def test_E5_domo_starts_ahead_and_steps_from_x() -> None:
    play = Play(the("domo", mu_s=0.7, mu_l=0.5, beta_f=0.4, server_lr=0.8), S=3, noise=0.3)
    m = torch.zeros(D, dtype=torch.float64)
    for _ in range(4):
        x = play.server.x
        _, steps = play.round()
        ends = []
        for work in steps:
            close(work.points[0], x - 0.4 * 0.01 * K * m)
            u = torch.zeros(D, dtype=torch.float64)
            for g in work.gradients:
                u = 0.5 * u + g
            ends.append(work.points[0] - work.points[-1] + 0.01 * u)
        m = 0.7 * m + mean(ends) / (0.01 * K)
        close(play.server.x, x - 0.8 * 0.01 * K * m)


def test_19_feddyn_in_unscaled_form() -> None:
    play = Play(the("feddyn", alpha=0.5), S=3)
    x, r = X0, [torch.zeros(D, dtype=torch.float64) for _ in range(N)]
    for _ in range(5):
        ids, _ = play.round()
        ends = {}
        for i in ids:
            w = x
            for _ in range(K):
                w = w - 0.1 * (PROBLEMS[i][0] @ w - PROBLEMS[i][1] + 0.5 * r[i] + 0.5 * (w - x))
            ends[i] = w
        for i in ids:
            r[i] = r[i] + ends[i] - x
        x = mean([ends[i] for i in ids]) + mean(r)
        close(play.server.x, x)


def test_F2_fedpd_skips_communication_with_one_coin() -> None:
    algo = the("fedpd", p_skip=0.5)
    coins = np.stack([algo.draw(np.random.default_rng(t), range(N))["tracks"] for t in range(1000)])
    assert (coins == coins[:, :1]).all()
    assert coins.mean() == pytest.approx(0.5, abs=0.06)
    play = Play(algo)
    talks = [bool(algo.draw(np.random.default_rng(t + 1), [0])["tracks"][0]) for t in range(8)]
    assert {True, False} == set(talks)
    x0 = [X0] * N
    lam, w = [torch.zeros(D, dtype=torch.float64)] * N, [X0] * N
    for talk in talks:
        before = play.server.x
        play.round()
        for i, (A, b) in enumerate(PROBLEMS):
            for _ in range(K):
                w[i] = w[i] - 0.1 * (A @ w[i] - b + lam[i] + w[i] - x0[i])
            lam[i] = lam[i] + w[i] - x0[i]
            x0[i] = w[i] + lam[i]
        if talk:
            x0 = [mean(x0)] * N
            close(play.server.x, x0[0])
        else:
            close(play.server.x, before)
    history = train(algo, 12).history
    assert {row["up"] for row in history} == {0.0, float(D)}


def test_24_fafed_conserves_its_error_without_forgetting() -> None:
    play = Play(the("fafed", a=0.0))
    for _ in range(4):
        start, mems = play.server, list(play.mems)
        for steps in range(1, K + 1):
            for i, (A, b) in enumerate(PROBLEMS):
                work = Local(A, b, steps)
                up, _ = play.algo.client(start, mems[i], work)
                close(up.m - work.gradients[-1], start.m - (A @ mems[i].x_prev - b))
        play.round()


def test_C9_fafed_starts_with_the_gradients_of_all_clients() -> None:
    play = Play(the("fafed", lr=0.03))
    g = [A @ X0 - b for A, b in PROBLEMS]
    close(play.server.m, mean(g))
    close(play.server.v, mean([z**2 for z in g]))
    close(play.server.x, X0 - 0.03 * mean(g))
    for mem in play.mems:
        close(mem.x_prev, X0)
    ids, steps = play.round()
    for i, work in zip(ids, steps, strict=True):
        close(play.mems[i].x_prev, work.points[-1])
        close(work.asked[0][1][0], X0)  # the second gradient of the first step
    # The warm-up visits as many clients at a time as a round has. x moves only after the last of them.
    run = train(the("fafed", lr=0.03, allow_partial=True), 1, cohort=[[0, 1]], local_steps=1)
    for i in range(N):
        close(run.clients[i].x_prev, X0 - 0.03 * mean(g) if i < 2 else X0)


def test_C9_fafed_that_forgets_at_once_is_preconditioned_sgd() -> None:
    play = Play(the("fafed", a=1.0, lr=0.05, rho=0.2), noise=0.3)
    for _ in range(3):
        root = play.server.v.sqrt() + 0.2
        _, steps = play.round()
        for work in steps:
            for k in range(K - 1):
                close(work.points[k + 1], work.points[k] - 0.05 * work.gradients[k] / root)


@pytest.mark.parametrize("name", ["fedams", "fed-ams", "fed-lamb", "mime-lamb", "adaalter"])
def test_second_moments_that_never_decrease(name: str) -> None:
    play = Play(the(name, eps=1e-6), S=3, noise=0.3)
    field = "v" if name == "adaalter" else "v_hat"
    first = getattr(play.server, field)
    for _ in range(6):
        before = getattr(play.server, field)
        play.round()
        assert (getattr(play.server, field) >= before).all()
    assert (before > first).all()


def test_B4_fedams_is_fedadam_while_v_grows() -> None:
    v0 = 1e-12  # FedAMS starts v at 0 and v_hat at eps; both are far below the first displacement's square
    ams = train(the("fedams", lr=0.1, server_lr=0.01, eps=v0), 1)
    adam = train(the("fedadam", v0=0.0, tau=0.0), 1)
    close(ams.params, adam.params)
    assert (train(the("fedams", lr=0.1, server_lr=0.01), 1).params - adam.params).norm() > 1e-4


# The projection of GradMA ---------------------------------------------------------------------------------------------


def cones() -> Iterator[tuple[Tensor, Tensor]]:
    """p [d] and columns [C, d]: random ones, and degenerate ones as they occur on workers."""
    rng = np.random.default_rng(11)
    for C, d in ((1, 7), (2, 7), (3, 7), (3, 3), (3, 2)):
        for _ in range(25):
            yield torch.from_numpy(rng.normal(size=d)), torch.from_numpy(rng.normal(size=(C, d)))
    for _ in range(25):
        p, a = torch.from_numpy(rng.normal(size=D)), torch.from_numpy(rng.normal(size=D))
        yield p, torch.stack([a, a, -p])
        yield p, torch.stack([a, 1e-9 * a, torch.zeros_like(a)])
        yield p, torch.stack([a, -a, -p + a])
        yield p, torch.stack([-p, p, -2 * p])


def projected(p: Tensor, M: Tensor) -> dict[str, Tensor]:
    """The projections by both solvers: enumeration (workers) and least squares (server)."""
    z = cone_weights((M @ M.T).numpy(), (M @ p).numpy(), float(p.norm()))
    return {"worker": project(p.clone(), list(M)), "server": p + torch.from_numpy(z) @ M}


def test_20_projection_is_optimal() -> None:
    for p, M in cones():
        size = float(p.norm())
        for u in projected(p, M).values():
            for column in M:
                assert column @ u >= -1e-7 * size * column.norm()
            assert abs(float(u @ (u - p))) < 1e-7 * size**2
            assert u.norm() <= size * (1 + 1e-9)
            # u is the nearest point of the cone: u - p lies in the cone of the columns.
            z, residual = nnls(M, u - p)
            assert residual < 1e-7 * size, z
        worker, server = projected(p, M).values()
        close(worker, server, 1e-6 * max(size, 1.0))


def thin_cones() -> Iterator[tuple[Tensor, list[Tensor]]]:
    """p and columns in float32 that are opposite up to rounding, or almost: a gradient, and the displacement against it."""
    make = torch.Generator().manual_seed(5)
    for width in (0.0, 1e-6, 1e-4, 1e-3, 1e-2):
        for _ in range(10):
            g, noise, near = (torch.randn(20_000, generator=make) for _ in range(3))
            p = 0.1 * (g + 0.1 * noise)
            way = -0.037 * g + 0.037 * width * near
            yield p, [g, way]
            yield p, [p + 0.05 * near, 8 * g, way]
    # From a real run, rotated: a gradient, the gradient at x, the displacement from x; then p.
    met = torch.tensor(
        [
            [8.2868e-03, 0.0, 0.0, 0.0],
            [7.9311e-01, 1.8554e-01, 0.0, 0.0],
            [-7.9396e-02, -1.8186e-02, 2.7357e-05, 0.0],
            [8.2508e-03, 1.3992e-05, -5.4514e-04, 1.5314e-05],
        ]
    )
    for _ in range(10):
        space = torch.linalg.qr(torch.randn(20_000, 4, generator=make))[0].T
        *columns, p = met @ space
        yield p, columns


@pytest.mark.parametrize("together", [False, True])
def test_20_projection_on_thin_cones(together: bool) -> None:
    """In float32, against brute force in float64. The result is never longer than p, for one client and for several."""
    for p, columns in thin_cones():
        if together:
            u = project(torch.stack([p, 2 * p]), [torch.stack([m, m]) for m in columns])
            torch.testing.assert_close(u[1], 2 * u[0], rtol=1e-4, atol=1e-4)
            u = u[0]
        else:
            u = project(p.clone(), columns)
        size = float(p.norm())
        assert u.norm() <= size * (1 + 1e-4)
        for m in columns:
            assert m.double() @ u.double() >= -1e-5 * size * m.norm()
        expected = brute_force(p.double().numpy(), [m.double().numpy() for m in columns])
        assert np.linalg.norm(u.double().numpy() - expected) < 2e-3 * size


def test_20_short_memories() -> None:
    """Clients that have converged are remembered by vectors so short that float32 cannot hold them, or their inverse."""
    make = torch.Generator().manual_seed(5)
    x = torch.zeros(5000)
    for length in (1e-3, 1e-20, 1e-28, 1e-36, 1e-43):
        momentum, dx = torch.randn(5000, generator=make), torch.randn(3, 5000, generator=make)
        dx[1] = dx[1].double().mul(length / float(dx[1].norm())).float()
        memory = gradma.Memory.empty(x, 3)._replace(ids=torch.arange(3))
        for sign in (1, -1):
            memory, u = gradma.server_update(memory, sign * momentum, dx.clone(), [0, 1, 2], 0.5)
            assert u.norm() <= momentum.norm() * (1 + 1e-6)
            live = [row for row in memory.D if row.double().norm() > 1e-30]
            expected = brute_force((sign * momentum).double().numpy(), [row.double().numpy() for row in live])
            np.testing.assert_allclose(u.double().numpy(), expected, atol=1e-4)


def nnls(M: Tensor, target: Tensor) -> tuple[np.ndarray, float]:
    from scipy.optimize import nnls as solve

    scale = M.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return solve((M / scale).T.numpy(), target.numpy())


def test_20_projection_of_special_cones() -> None:
    rng = np.random.default_rng(12)
    for _ in range(20):
        p, m = (torch.from_numpy(rng.normal(size=D)) for _ in range(2))
        for u in projected(p, m[None]).values():
            close(u, p - torch.clamp(p @ m, max=0) * m / (m @ m))
        for u in projected(p, torch.stack([p + 0.1 * m, p])).values():
            close(u, p)  # all agree already
    for p, M in cones():
        if M.shape[1] < D or torch.linalg.matrix_rank(M) < len(M):
            continue
        order = torch.randperm(len(M))
        scales = torch.tensor([1e-4, 1.0, 1e5], dtype=torch.float64)[: len(M), None]
        for kind in ("worker", "server"):
            close(projected(p, M)[kind], projected(p, (M * scales)[order])[kind], 1e-8)


def test_20_projection_of_many_clients_at_once() -> None:
    some = [(p, M) for p, M in cones() if M.shape == (3, D)]
    together = project(torch.stack([p for p, _ in some]), [torch.stack([M[j] for _, M in some]) for j in range(3)])
    for row, (p, M) in zip(together, some, strict=True):
        close(row, project(p.clone(), list(M)))


@pytest.mark.parametrize("name", ["gradma-s", "gradma"])
@pytest.mark.parametrize("memory", [3, 5])
def test_G3_the_momentum_agrees_with_all_that_is_remembered(name: str, memory: int) -> None:
    turned = 0
    for rounds in range(1, 8):
        run = train(the(name, memory=memory, beta1=0.6), rounds, **HARD)
        s = run.server
        assert (s.ids >= 0).sum() <= memory
        rows = s.D[s.ids >= 0]
        assert (rows @ s.m >= -1e-9 * rows.norm(dim=1) * s.m.norm()).all()
        turned += bool((train(the("fedavgm", beta1=0.6), rounds, **HARD).params - run.params).norm() > 1e-6)
    assert turned > 3, "no projection was needed"


# Fixed points ---------------------------------------------------------------------------------------------------------


def whole_numbers() -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """x* and quadratics in whole numbers, so that a correction cancels a gradient to the last bit."""
    rng = np.random.default_rng(3)
    star = rng.integers(-3, 4, size=D)
    pulls = rng.integers(-4, 5, size=(N, D))
    pulls[-1] = -pulls[:-1].sum(0)  # the gradients cancel in the mean, but none of them is zero
    problems = []
    for pull in pulls:
        root = rng.integers(-1, 2, size=(D, D))
        A = root @ root.T + np.eye(D, dtype=int)
        problems.append(tuple(torch.from_numpy(z).double() for z in (A, A @ star - pull)))
    return torch.from_numpy(star).double(), problems


STAR, WHOLE = whole_numbers()
AT_STAR = [A @ STAR - b for A, b in WHOLE]

# The client's record at x*, from its gradient there. The other server fields are those of `init`: all zero.
FIXED: list[tuple[fk.Algorithm, Any]] = [
    (the("scaffold", option="I", lr=0.01), lambda g: {"c": g}),
    (the("scaffold", option="II", lr=0.01), lambda g: {"c": g}),
    (the("scaffold-m", beta=0.5, lr=0.01), lambda g: {"c": g}),
    (the("scaffold-m-vr", beta=0.5, lr=0.01), lambda g: {"c": g}),
    (the("scaffold-normalized", lr=0.01, gamma=0.1, start="zero"), lambda g: {"c": g}),
    (the("padamfed", beta=0.5, lr=0.01, gamma=0.1, start="zero"), lambda g: {"c": g}),
    (the("padamfed-vr", beta=0.5, lr=0.01, gamma=0.1, start="zero"), lambda g: {"c": g}),
    (the("padamfed-vr", beta=0.5, lr=0.01, gamma=0.1, start="zero", variant="listing"), lambda g: {"c": g}),
    (the("fadamgt"), lambda g: {"y": g}),
    (the("fedit-adamgt"), lambda g: {"y": g}),
    (the("vrl-sgd", lr=0.01), lambda g: {"h": g, "rate": torch.ones(1, dtype=torch.float64)}),
    (the("scaffnew", lr=0.01), lambda g: {"h": g, "rate": torch.ones(1, dtype=torch.float64)}),
    (the("feddyn", lr=0.01), lambda g: {"lam": g}),
    (the("fedpd", lr=0.01), lambda g: {"lam": -g}),
    (the("fedpd", lr=0.01, start="global"), lambda g: {"lam": -g}),
    (the("mime", base="sgd", lr=0.01), None),
    (the("mime", base="sgdm", lr=0.01), None),
    (the("mime", base="adam", eps=1.0), None),
    (the("fedsgd", lr=0.01), None),
]


@pytest.mark.parametrize(("algo", "record"), [pytest.param(*f, id=f"{f[0].name}-{n}") for n, f in enumerate(FIXED)])
def test_the_minimiser_is_a_fixed_point(algo: fk.Algorithm, record: Any) -> None:
    assert algo.facts.exact
    assert min(float(g.norm()) for g in AT_STAR) > 1
    play = Play(algo, STAR, WHOLE)
    if record is not None:
        play.mems = [mem._replace(**record(g)) for mem, g in zip(play.mems, AT_STAR, strict=True)]
    before = list(play.mems)
    for _ in range(3):
        _, steps = play.round()
        assert all((w - STAR).norm() < 1e-12 for work in steps for w in work.points), "a client moved"
        assert (play.server.x - STAR).norm() < 1e-12
    for mem, old in zip(play.mems, before, strict=True):
        for field in set(mem._fields if mem is not None else ()) & {"c", "y", "h", "lam"}:
            close(getattr(mem, field), getattr(old, field), 1e-12)


def test_the_minimiser_is_not_a_fixed_point_with_other_control_variates() -> None:
    for algo, record in FIXED:
        if record is not None:
            play = Play(algo, STAR, WHOLE)  # all records are those of `init`
            _, steps = play.round()
            assert any((w - STAR).norm() > 1e-3 for work in steps for w in work.points[1:]), algo.name


# All registered methods that declare it, new ones too. Methods that look into the model are in test_features.py.
DECLARED = {name: lookup(name).facts for name in fk.algorithms()}
DRIFTING = [name for name, facts in DECLARED.items() if not (facts.exact or facts.needs or facts.private)]


@pytest.mark.parametrize("name", DRIFTING)
def test_the_minimiser_is_not_a_fixed_point(name: str) -> None:
    star = minimiser(FED)
    for rounds in (1, 2, 25):
        moved = train(the(name), rounds, x0=star).params - torch.from_numpy(star)
        assert moved.norm() > 1e-5
    play = Play(the(name), torch.from_numpy(star))
    _, steps = play.round()
    assert all((work.points[-1] - work.points[0]).norm() > 1e-6 for work in steps), "a client did not move"


def test_scaffold_alpha_with_the_right_control_variates_still_drifts() -> None:
    """The fixed point of SCAFFOLD is not one for another alpha. FAdamGT's fixed point is not one for FAdamET."""
    for algo, field in ((the("scaffold-alpha", alpha=0.5, lr=0.01), "c"), (the("fadamet"), "y")):
        play = Play(algo, STAR, WHOLE)
        play.mems = [mem._replace(**{field: g}) for mem, g in zip(play.mems, AT_STAR, strict=True)]
        play.round()
        assert (play.server.x - STAR).norm() > 1e-4
