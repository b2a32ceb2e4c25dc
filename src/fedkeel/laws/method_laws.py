"""The laws. Each is a function of the name of a method, and raises `BrokenLaw` if the method does not obey it.

`check` applies all of them to one method and collects what it finds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from fedkeel.core.algorithm import SERVER_HOOKS, Algorithm, Plan, lookup, make, received
from fedkeel.core.flat import Layers
from fedkeel.core.records import down_record, trial_upload
from fedkeel.core.round import Round
from fedkeel.core.steps import Objective
from fedkeel.data.federation import Federation
from fedkeel.engine.client_work import ClientTask, ClientWork
from fedkeel.engine.objective import cross_entropy, make_flat
from fedkeel.engine.result import Run
from fedkeel.engine.train import train as train_run
from fedkeel.errors import describe
from fedkeel.laws.problems import (
    copy_record,
    digits_fed,
    half_square,
    linear_clients,
    linear_model,
    minimiser,
    same_record,
    small_net,
)

LONGEST_SUMMARY = 400  # characters of the first paragraph of a docstring: `fedkeel algorithms` shows it


class BrokenLaw(AssertionError):
    """A method does not obey a law. The text says how."""


def demand(obeyed: object, words: str) -> None:
    if not obeyed:
        raise BrokenLaw(words)


def demand_refusal(call: Callable[[], Any], word: str) -> None:
    """The call must raise a ValueError that has this word in its text."""
    try:
        call()
    except ValueError as error:
        demand(word in str(error), f"the error does not name {word!r}: {error}")
    else:
        raise BrokenLaw(f"a bad value of {word} is accepted")


def full_only(name: str) -> bool:
    """Is the method defined for full participation only?"""
    return "allow_partial" in {field.name for field in dataclasses.fields(lookup(name))}  # type: ignore[arg-type]


def train(method: str | Algorithm, fed: Federation, model: Any, **settings: Any) -> Run:
    usual: dict[str, Any] = {
        "rounds": 3,
        "cohort": 3,
        "engine": "sequential",
        "progress": False,
        "batch_size": 8,
        "local_steps": 3,
    }
    if full_only(method if isinstance(method, str) else method.name):
        settings["cohort"] = len(fed)
    return train_run(model, fed, method, **(usual | settings))


# What a method may do -------------------------------------------------------------------------------------------------


class Watched:
    """Runs the parts of a method by hand, on real data, and keeps their inputs."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        self.fed = digits_fed(6)
        self.flat = make_flat(small_net(), 0, "cpu", dtype)
        self.algo = make(name).plan(Plan(N=6, S=6, K=3, T=10, layers=self.flat.layers))
        self.work = ClientWork(self.algo, self.fed, Objective(self.flat, cross_entropy), 0, 8, 1.0)
        self.server, self.mem = self.algo.init(self.flat.vector())

    @torch.no_grad()
    def clients(self, stage: str, t: int, mems: list[Any]) -> list[Any]:
        drawn = self.algo.draw(np.random.default_rng(t + 1), range(6))
        K = drawn.pop("K", np.full(6, 3))
        down = down_record(self.algo, self.server)
        results = []
        for i in range(6):
            roles = {k: float(z[i]) for k, z in drawn.items()}
            task = ClientTask(stage, t, i, int(K[i]), roles, i)
            result = self.work.run_client(task, down, self.flat.read_buffers(), mems[i])
            result.up, result.mem = copy_record(result.up), copy_record(result.mem)  # as an engine does
            results.append(result)
        return results

    def stages(self) -> list[tuple[str, str, int]]:
        """(hook of the clients, hook of the server, round) of all exchanges of two rounds."""
        found = [("warmup", "warmup_server", -1)] if self.algo.warms_up() else []
        for t in range(2):
            found += [("survey", "survey_server", t)] if self.algo.surveys() else []
            found += [("client", "server", t)]
        return found

    def roles(self, t: int) -> dict[str, np.ndarray]:
        drawn = self.algo.draw(np.random.default_rng(t + 1), range(6))
        drawn.pop("K", None)
        return drawn


def _stacked(results: list[Any]) -> Any:
    ups = [result.up for result in results]
    return type(ups[0])(*(torch.stack(z) for z in zip(*ups, strict=True)))


def _round(t: int, drawn: dict[str, np.ndarray]) -> Round:
    sixth = torch.full((6,), 1 / 6, dtype=torch.float64)
    roles = SimpleNamespace(**{k: torch.from_numpy(z).double() for k, z in drawn.items()})
    return Round(t, 6, torch.arange(6), torch.full((6,), 3.0, dtype=torch.float64), sixth, sixth, roles)


@torch.no_grad()
def inputs_do_not_change_and_records_keep_their_form(name: str, dtype: torch.dtype) -> None:
    run = Watched(name, dtype)
    mems = [run.mem] * 6
    for stage, step, t in run.stages():
        server, kept = copy_record(run.server), [copy_record(mem) for mem in mems]
        results = run.clients(stage, t, mems)
        demand(same_record(run.server, server), f"{stage} changed what it was sent")
        demand(all(same_record(a, b) for a, b in zip(mems, kept, strict=True)), f"{stage} changed a client's record")
        stack = _stacked(results)
        given = copy_record(stack)
        new = getattr(run.algo, step)(run.server, stack, _round(t, run.roles(t)))
        demand(same_record(stack, given), f"{step} changed the uploads")
        demand(same_record(run.server, server, without=run.algo.facts.owns), f"{step} changed the server record")
        for old, fresh in [(run.server, new), *((a, result.mem) for a, result in zip(mems, results, strict=True))]:
            demand((old is None) == (fresh is None), f"{stage}: a record appears or disappears")
            for field in () if old is None else old._fields:
                a, b = getattr(old, field), getattr(fresh, field)
                same = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
                demand(same, f"{stage}: field {field} changes from {a.dtype} {list(a.shape)} to {b.dtype} {list(b.shape)}")
        run.server, mems = new, [result.mem for result in results]


def counted_cost_is_what_would_be_sent(name: str) -> None:
    run = Watched(name)
    cost, down_bytes = 0.0, 0
    for stage, step, t in run.stages()[: 1 + run.algo.surveys() + run.algo.warms_up()]:
        drawn = run.roles(t)
        results = run.clients(stage, t, [run.mem] * 6)
        down = down_record(run.algo, run.server)
        down_bytes = len(save({f: z.clone() for f, z in down._asdict().items()}))
        sent = 0
        for i, result in enumerate(results):
            tracks = drawn.get("tracks", np.ones(6))[i]
            fields = {f: z for f, z in result.up._asdict().items() if tracks or f not in run.algo.facts.tracked}
            sent += sum(z.numel() for z in fields.values())
        cost += 0 if stage == "warmup" else sent / 6
        run.server = getattr(run.algo, step)(run.server, _stacked(results), _round(t, drawn))
    row = train(name, run.fed, small_net(), rounds=1, cohort=6).history[0]
    demand(math.isclose(row["up"], cost, rel_tol=1e-6), f"{row['up']} floats are counted, {cost} are sent")
    demand(0 <= down_bytes - 4 * row["down"] < 2000, f"{4 * row['down']} bytes down are counted, {down_bytes} are sent")


# Corner cases ---------------------------------------------------------------------------------------------------------

CORNERS: dict[str, dict[str, Any]] = {
    "S = 1": {"cohort": 1},
    "K = 1": {"local_steps": 1},
    "N = 1": {"cohort": 1},
    "batch = 1": {"batch_size": 1},
    "full batch": {"batch_size": None},
    "unequal K": {"local_steps": None, "local_epochs": 1, "batch_size": 30},
}


def corner_case_runs(name: str, corner: str) -> None:
    fed = digits_fed(5)
    if corner == "N = 1":
        fed = Federation.from_arrays([(fed[0].x, fed[0].y)], test=fed.test)
    run = train(name, fed, small_net(), **CORNERS[corner])
    demand(torch.isfinite(run.params).all(), "the weights are not finite")
    demand(sum(row["dropped"] for row in run.history) == 0, "answers of clients are dropped")


def clipping_changes_the_step(name: str) -> None:
    """A tiny clip must change what a client does, unless the method ignores the length of a direction."""
    fed = digits_fed(5)
    short = {"rounds": 1, "cohort": 5, "local_steps": 2}
    free, clipped = train(name, fed, small_net(), **short), train(name, fed, small_net(), clip=1e-3, **short)
    unit = lookup(name).facts.local.startswith("unit-norm")
    words = "clip changes the step, though local starts with 'unit-norm'" if unit else "clip has no effect"
    demand(torch.equal(free.params, clipped.params) == unit, words)


def samples_weigh_clients_unless_declared_uniform(name: str) -> None:
    fed = digits_fed(5)
    if lookup(name).facts.uniform:
        return demand_refusal(lambda: train(name, fed, small_net(), weights="samples"), "only defined for 'uniform'")
    uniform, samples = (train(name, fed, small_net(), weights=w) for w in ("uniform", "samples"))
    demand(not torch.equal(uniform.params, samples.params), "weights = 'samples' has no effect; use r.avg, or uniform=True")


def order_in_a_cohort_is_irrelevant(name: str) -> None:
    fed = digits_fed(5)
    cohorts = ([[0, 2, 4]] * 3, [[4, 0, 2], [2, 4, 0], [4, 2, 0]])
    one, other = (train(name, fed, small_net(), cohort=cohort) for cohort in cohorts)
    demand(torch.equal(one.params, other.params), "the order of the clients in a round changes the weights")


# What a method achieves -----------------------------------------------------------------------------------------------


def defaults_lower_the_loss(name: str, kind: str) -> None:
    fed = digits_fed(10, concentration=0.5)
    model = (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))) if kind == "convex" else small_net(32)
    run = train(name, fed, model, rounds=30, cohort=5, local_steps=8, batch_size=16)
    loss = run.history[-1]["test_loss"]
    demand(loss < 0.93 * math.log(10), f"the test loss is {loss:.3g} after 30 rounds; chance is {math.log(10):.3g}")


def minimiser_is_a_fixed_point_exactly_if_declared(name: str, **hyperparameters: Any) -> None:
    """Different quadratics, K = 10, exact gradients, all clients, start at x*: does the method stay at x*?

    hyperparameters: values with which a short run reaches the fixed point, if the defaults would need a long one.
    """
    fed = linear_clients([12] * 3, 8, seed=2, shift=False)
    star = minimiser(fed)
    usual = {"lr": 0.1} if "lr" in {f.name for f in dataclasses.fields(lookup(name))} else {}  # type: ignore[arg-type]
    model = nn.Sequential(nn.Flatten(), linear_model(8, bias=False, x0=star.tolist()))  # a Sequential shows its features
    settings: dict[str, Any] = {"rounds": 100, "cohort": 3, "local_steps": 10, "batch_size": None}
    run = train(make(name, **(usual | hyperparameters)), fed, model, loss=half_square, dtype=torch.float64, **settings)
    away = float(np.linalg.norm(run.params.numpy() - star))
    if lookup(name).facts.exact:
        demand(away < 1e-3, f"exact = True, but it moves {away:.2g} away from the minimiser")
    else:
        demand(away > 5e-3, f"it stays within {away:.2g} of the minimiser, though exact = False")


def methods_declared_the_same_are_the_same(name: str) -> None:
    """With partial participation and mini-batches, both end with the same weights, which are not the initial ones."""
    initial = make_flat(small_net(), 0, "cpu", torch.float64).vector()
    for claim in lookup(name).facts.same:
        mine, _, theirs = claim.partition(" -> ")
        other, *words = theirs.split()
        settings: dict[str, Any] = {"rounds": 5, "cohort": 4, "dtype": torch.float64}
        methods = (_from_words(mine.split(), name), _from_words(words, other))
        one, two = (train(method, digits_fed(6), small_net(), **settings).params for method in methods)
        demand(torch.allclose(one, two, rtol=1e-8, atol=1e-10), f"{claim}: the weights differ")
        demand(not torch.allclose(one, initial), f"{claim}: nothing was trained")


def _from_words(words: list[str], name: str) -> Algorithm:
    """A method from `lr=0.1 base=sgd`."""
    kinds = {field.name: field.default for field in dataclasses.fields(lookup(name))}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, text in (word.split("=") for word in words):
        if isinstance(kinds[key], bool):
            values[key] = text == "true"
            continue
        values[key] = text if isinstance(kinds[key], str) else int(text) if text.isdigit() else float(text)
    return make(name, **values)


# The declarations themselves ------------------------------------------------------------------------------------------


def declaration_is_complete(name: str) -> None:
    cls = lookup(name)
    facts = cls.facts
    for word in ("paper", "family", "solves"):
        demand(getattr(facts, word), f"the decorator lacks {word}=")
    demand(facts.gradients >= 1, "gradients must be at least 1")
    summary = (cls.__doc__ or "").split("\n\n")[0]
    demand(summary, "the class has no docstring")
    demand(len(summary) <= LONGEST_SUMMARY, f"the first paragraph of the docstring is longer than {LONGEST_SUMMARY}")
    plan = Plan(N=4, S=4, K=2, T=4, layers=Layers([3, 2]))
    server, _ = make(name).plan(plan).init(torch.zeros(5))
    demand("x" in server._fields, "the server record has no field x, the global model")
    demand(set(facts.sends) <= set(server._fields), "sends names a field that the server record does not have")
    demand(set(facts.owns) <= set(server._fields), "owns names a field that the server record does not have")
    for hook in [hook for hook in SERVER_HOOKS if hasattr(cls, hook)]:
        kind: Any = received(cls, hook)
        demand(kind is not None, f"{hook} does not annotate what it receives, down: Down")
        demand(set(kind._fields) == set(facts.sends), f"the type of down of {hook} has other fields than sends")
    up = trial_upload(make(name).plan(plan), "client", plan.layers, torch.float32)  # type: ignore[arg-type]
    demand(set(facts.tracked) <= set(up._fields), "tracked names a field that is not uploaded")
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        demand(field.metadata.get("doc"), f"the hyper-parameter {field.name} has no description; declare it by hp(...)")


def bad_hyperparameters_are_refused(name: str) -> None:
    demand_refusal(lambda: make(name, lrr=1), "lrr")
    for field in dataclasses.fields(lookup(name)):  # type: ignore[arg-type]
        bad: list[Any] = ["nonsense"]
        if field.metadata.get("above") == 0:
            bad += [0, -1.0, float("nan"), float("inf")]
        for value in bad:
            demand_refusal(partial(make, name, **{field.name: value}), field.name)


# All of them ----------------------------------------------------------------------------------------------------------

LAWS: dict[str, Callable[..., None]] = {
    "the declaration is complete": declaration_is_complete,
    "bad hyper-parameters are refused": bad_hyperparameters_are_refused,
    **{
        f"inputs do not change, records keep their form ({kind})".replace("torch.", ""): partial(
            inputs_do_not_change_and_records_keep_their_form, dtype=kind
        )
        for kind in (torch.float32, torch.float64)
    },
    "the counted cost is what would be sent": counted_cost_is_what_would_be_sent,
    **{f"it runs with {corner}": partial(corner_case_runs, corner=corner) for corner in CORNERS},
    "clipping changes the step": clipping_changes_the_step,
    "samples weigh clients, unless declared uniform": samples_weigh_clients_unless_declared_uniform,
    "the order in a cohort is irrelevant": order_in_a_cohort_is_irrelevant,
    "its defaults lower the loss (convex)": partial(defaults_lower_the_loss, kind="convex"),
    "its defaults lower the loss (neural)": partial(defaults_lower_the_loss, kind="neural"),
    "methods declared the same are the same": methods_declared_the_same_are_the_same,
}
FIXED_POINT = "the minimiser is a fixed point exactly if declared"


def check(method: str | type[Algorithm], **hyperparameters: Any) -> dict[str, str | None]:
    """Applies all laws to a method -> for every law what is wrong, or None.

    method: a name, `package.module:Class` or the class.
    hyperparameters: values with which a run of 100 rounds reaches a fixed point, for the law about the minimiser.
    """
    name = method if isinstance(method, str) else method.name
    lookup(name)
    laws = LAWS | {FIXED_POINT: partial(minimiser_is_a_fixed_point_exactly_if_declared, **hyperparameters)}
    found: dict[str, str | None] = {}
    for law, apply in laws.items():
        try:
            apply(name)
            found[law] = None
        except BrokenLaw as broken:
            found[law] = str(broken)
        except Exception as error:  # the method itself failed
            found[law] = describe(error)
    return found
