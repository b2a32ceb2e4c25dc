"""`train`: checks what it was given, and runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel.core.algorithm import Algorithm, make
from fedkeel.core.steps import Step
from fedkeel.data.dataset_pool import kind_of
from fedkeel.data.federation import Federation, misplaced
from fedkeel.engine.callbacks import Callback, check_callbacks
from fedkeel.engine.fleet import Fleet
from fedkeel.engine.loop import Progress, run_training
from fedkeel.engine.own_code import OwnCode, check_functions
from fedkeel.engine.own_metrics import separate
from fedkeel.engine.participation import Participation
from fedkeel.engine.result import Run
from fedkeel.engine.runners.runner import Remote
from fedkeel.engine.settings import STORES, Settings
from fedkeel.engine.state.directory import check_out
from fedkeel.errors import refuse


def train(
    model: nn.Module | Callable[[], nn.Module],
    fed: Federation,
    algorithm: str | Algorithm,
    *,
    rounds: int = Settings.rounds,
    cohort: int | float | Sequence[Sequence[int]] | Callable[[int], Any] | None = None,
    participation: str | Participation | None = Settings.participation,
    clock: str | Fleet | None = Settings.clock,
    deadline: float | None = Settings.deadline,
    overselect: float = Settings.overselect,
    buffer: int | None = Settings.buffer,
    concurrency: int | None = Settings.concurrency,
    staleness: str | Callable[[int], float] = Settings.staleness,
    local_steps: int | None = Settings.local_steps,
    local_epochs: int | None = Settings.local_epochs,
    batch_size: int | str | None = Settings.batch_size,
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    step: Step | None = None,
    weight_decay: float = Settings.weight_decay,
    lr_decay: float = Settings.lr_decay,
    lr_schedule: str | Callable[[int], float] | None = Settings.lr_schedule,
    clip: float | None = Settings.clip,
    weights: str = Settings.weights,
    privacy: Any = Settings.privacy,
    uplink: Any = Settings.uplink,
    downlink: Any = Settings.downlink,
    aggregation: Any = Settings.aggregation,
    attack: Any = Settings.attack,
    seed: int = Settings.seed,
    engine: str = Settings.engine,
    device: str = Settings.device,
    devices: Sequence[str] | str = Settings.devices,
    dtype: torch.dtype | None = None,
    memory_format: str | None = Settings.memory_format,
    precision: str | None = Settings.precision,
    out: str | Path | None = None,
    progress: Progress = True,
    evaluate_every: int = Settings.evaluate_every,
    resume: bool = False,
    min_clients: int = Settings.min_clients,
    workers: int | None = Settings.workers,
    timeout: float | None = Settings.timeout,
    ray_address: str = Settings.ray_address,
    store: str = "auto",
    validation: float = Settings.validation,
    evaluate_on: str = Settings.evaluate_on,
    metrics: Sequence[Any] = Settings.metrics,
    callbacks: Sequence[Callback] = (),
    config: dict[str, Any] | None = None,
    remote: Remote | None = None,
) -> Run:
    """Trains `model` over the clients of `fed` and returns the result.

    The defaults are those of the command line: 100 rounds of 10 clients, 10 local steps with 20 samples each.

    cohort: the clients of a round: a count, a fraction (float), the client ids of every round, or a function of the round t
        that returns client ids, a count or a fraction. None: 10, or all clients if there are fewer.
    participation: who is there, e.g. fedkeel.participation("markov", on=0.2, off=0.1); see docs/participation.md.
    clock: speeds of the clients, e.g. fedkeel.Fleet("phones"); then the history has virtual seconds.
    deadline: virtual seconds after which a round goes on without the late.  overselect: times the cohort to select.
    buffer: asynchronous; the server makes a step after this number of uploads.  concurrency: clients at work at once.
    staleness: "sqrt", "constant" or a function: the factor of an upload whose model is tau server steps old.
    local_steps: mini-batch steps of a client in a round.
    local_epochs: passes of a client over its data in a round. If you give local_steps too, local_steps is used.
    batch_size: samples of a step; "all" or None takes all local data in every step.
    loss: loss(output, target) -> mean over the batch; cross-entropy by default.
    step: step(model, batch) -> loss, instead of `loss`. A batch is the pair (x, y), or what your own data sets yield.
    lr_decay: the local learning rate of round t is lr * lr_decay ** t.
    lr_schedule: "cosine", "step:30,60", "warmup:5", "warmup:5+cosine", or a function of t that returns a factor of lr.
    clip: largest norm of a corrected direction.
    weights: "uniform", or "samples" to weigh clients by their number of samples.
    privacy: Privacy(...), differential privacy of clients.  uplink: compression, such as [TopK(0.01), Quantize(bits=4)].
    downlink: compression of what the server sends, such as Quantize(bits=8).
    aggregation: a mean that bad clients cannot move far, such as "median" or TrimmedMean(0.2).
    attack: bad clients in a simulation, such as SignFlip(0.2).  See docs/conditions.md for these four.
    engine: auto, sequential, vectorized, compiled, processes or ray; see docs/engines.md.
    devices: several GPUs of this machine, each of which runs clients: ["cuda:0", "cuda:1"], or "all"; see docs/gpu.md.
    memory_format: "channels_last" is faster for convolutions; by default that of the model's parameters.
    precision: "bf16" computes forward and backward passes in 16 bits: faster, but the weights differ.
    out: a directory for config, metrics, checkpoint and model.  resume: go on from the checkpoint there, if any.
    progress: a bar on the screen, or a function that is called with every row of the history.
    min_clients: a round in which fewer clients answer without a fault stops the run.
    timeout: seconds per client, for worker processes.
    ray_address: for engine="ray": "local" starts Ray on this machine, "auto" joins the cluster that runs here, or host:port.
    store: where client memory is kept: "auto" is in memory, or in `out` if you give one; "disk" is a temporary file.
    validation: part of every client's samples that is held out and never trained on; the history gets val_loss and
        val_accuracy, and run.best is the model of the best round.
    evaluate_on: "clients" also evaluates every client's held-out samples: mean, worst tenth, spread, and the gain of a few
        local steps.
    metrics: more measurements at every evaluation: train, gradient_norm, consistency, drift, tracking, qp (costly);
        functions of (model, fed) that return {name: number}; objects of torchmetrics.
    callbacks: functions of (row, state), called after every round; see docs/training.md.
    config: what `out` records as the run's config; by default these settings.
    remote: clients on other machines; then `fed` holds their sizes and the test data only (fedkeel.deploy).

    >>> fed = fk.load("digits").split("dirichlet_per_class", clients=100, concentration=0.1)
    >>> run = fk.train(fk.model("mlp", fed), fed, "fedlada", rounds=100, cohort=10)
    """
    if not isinstance(fed, Federation):
        raise ValueError(f"fed: expected a Federation, not {kind_of(fed)}{misplaced(fed) or '; see Federation.from_arrays'}")
    names, objects = separate(metrics)
    settings = Settings(
        rounds=rounds,
        cohort=min(Settings.cohort, len(fed)) if cohort is None else cohort,  # type: ignore[type-var]
        clock=clock,  # type: ignore[arg-type]  # Settings keeps its name
        deadline=deadline,
        overselect=overselect,
        buffer=buffer,
        concurrency=concurrency,
        staleness=staleness,
        participation=participation,  # type: ignore[arg-type]  # Settings keeps its text
        local_steps=local_steps,
        local_epochs=local_epochs if local_steps is None else None,
        batch_size=batch_size,
        weight_decay=weight_decay,
        lr_decay=lr_decay,
        lr_schedule=lr_schedule,
        clip=clip,
        weights=weights,
        privacy=privacy,
        uplink=uplink,
        downlink=downlink,
        aggregation=aggregation,
        attack=attack,
        seed=seed,
        evaluate_every=evaluate_every,
        validation=validation,
        evaluate_on=evaluate_on,
        metrics=names,
        engine=engine,
        device=device,
        devices=devices,
        memory_format=memory_format,
        precision=precision,
        workers=workers,
        timeout=timeout,
        ray_address=ray_address,
        min_clients=min_clients,
    )
    check_functions(loss, step)
    callbacks = check_callbacks(callbacks)
    check_out(out, resume)
    if store not in STORES:
        raise refuse("store", store, " or ".join(map(repr, STORES)))
    algo = make(algorithm) if isinstance(algorithm, str) else algorithm
    if not isinstance(algo, Algorithm):
        raise ValueError(f"algorithm: expected a name or fedkeel.algorithm(...), not {type(algo).__name__}")
    settings.check_with(algo, len(fed), remote is not None)
    if config is None:
        how_long = {name: getattr(settings, name) for name in ("rounds", "evaluate_every", "min_clients")}
        exact = settings.identity() | {"participation": settings.participation} | settings.conditions()
        exact |= {"local_epochs": settings.local_epochs, "batch_size": settings.batch_size}
        exact |= {"validation": settings.validation, "evaluate_on": settings.evaluate_on}
        if settings.lr_schedule is not None:
            exact["lr_schedule"] = settings.lr_schedule if isinstance(settings.lr_schedule, str) else "a Python function"
        config = {"algorithm": {"name": algo.name, **dataclasses.asdict(algo)}, **how_long, **exact}  # type: ignore[call-overload]
        config |= {"note": "model and data were Python objects: go on with train(..., out=, resume=True)"}
    own = OwnCode(loss, step, objects, callbacks)
    return run_training(
        model, fed, algo, settings, config, own, dtype, out, resume, progress, store, remote, returns_partial=True
    )
