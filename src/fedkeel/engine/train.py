"""`train`: checks what it was given, and runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.features import check_inside
from fedkeel.core.flat import FlatModel, copy_of
from fedkeel.core.registry import make
from fedkeel.data.federation import Federation
from fedkeel.engine.allocator import keep_freed_memory
from fedkeel.engine.compatibility import check_fit
from fedkeel.engine.loop import Trainer
from fedkeel.engine.loss import objective
from fedkeel.engine.metric_names import check_metrics
from fedkeel.engine.result import Run
from fedkeel.engine.runners.choice import EngineChoice, Remote
from fedkeel.engine.settings import Settings, check_device, check_engine, check_loss, check_out, check_store, check_workers
from fedkeel.errors import describe, refuse

IN_PROCESS = ("sequential", "vectorized", "compiled")  # engines that nobody could stop


def make_flat(model: Any, seed: int, device: str, dtype: torch.dtype | None, private: bool = False) -> FlatModel:
    """The user's module (never changed: a copy is trained) or what their function makes, seeded, on device and dtype."""
    if isinstance(model, nn.Module):
        module = copy_of(model)
    elif callable(model):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                made = model()
            except Exception as error:
                raise ValueError(f"model: the function that makes it fails: {describe(error)}") from error
        if not isinstance(made, nn.Module):
            raise ValueError(f"model: the function returned a {type(made).__name__}, not a torch.nn.Module")
        module = copy_of(made)  # the function may keep it
    else:
        raise ValueError(f"model: expected a torch.nn.Module or a function that makes one, not {type(model).__name__}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise refuse("dtype", dtype, "a floating-point torch.dtype, or None")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        module = module.to(device=device, dtype=dtype)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device = {device!r} cannot be used here: {describe(error)}") from error
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            if part.max_norm is not None:
                raise ValueError("model: an embedding with max_norm changes its own weights; clip them in forward instead")
            part.sparse = False  # the same gradient as a tensor that can be added to others
    # A model that comes in evaluation mode is trained; single layers that were put into it stay so.
    return FlatModel(module if module.training else module.train(), private)


def train(
    model: nn.Module | Callable[[], nn.Module],
    fed: Federation,
    algorithm: str | Algorithm,
    *,
    rounds: int,
    cohort: int | float | Sequence[Sequence[int]] = 10,
    local_steps: int | None = None,
    local_epochs: int = 1,
    batch_size: int | None = 50,
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    clip: float | None = None,
    weights: str = "uniform",
    seed: int = 0,
    engine: str = "auto",
    device: str = "auto",
    dtype: torch.dtype | None = None,
    out: str | Path | None = None,
    progress: bool | Callable[[dict[str, Any]], None] = True,
    evaluate_every: int = 1,
    resume: bool = False,
    min_clients: int = 1,
    workers: int | None = None,
    timeout: float | None = None,
    ray_address: str = "local",
    store: str = "auto",
    metrics: Sequence[str] = (),
    config: dict[str, Any] | None = None,
    remote: Remote | None = None,
) -> Run:
    """Trains `model` over the clients of `fed` and returns the result.

    cohort: participants of a round: a count, a fraction (float), or the client ids of every round.
    local_steps: mini-batch steps of a client; None: `local_epochs` passes over its data.
    batch_size: None takes all local data in every step.
    loss: loss(output, target) -> mean over the batch; cross-entropy by default.
    lr_decay: the local learning rate of round t is lr * lr_decay ** t.  clip: norm limit of a corrected direction.
    weights: "uniform", or "samples" to weigh clients by their number of samples.
    engine: auto, sequential, vectorized, compiled, processes or ray; see docs/engines.md.
    out: a directory for config, metrics, checkpoint and model.  resume: go on from the checkpoint there, if any.
    progress: a bar on the screen, or a function that is called with every row of the history.
    min_clients: a round with fewer good answers stops the run.  timeout: seconds per client, for worker processes.
    ray_address: for engine="ray": "local" starts Ray on this machine, "auto" joins the cluster that runs here, or host:port.
    store: where client memory lives: "auto" is in memory, or in `out` if there is one; "disk" is a temporary file.
    remote: clients on other machines; then `fed` holds their sizes and the test data only (fedkeel.deploy).

    metrics: further measurements at every evaluation: train, gradient_norm, consistency, drift, tracking, qp (costly).

    >>> fed = load("digits").split("dirichlet_per_class", clients=100, concentration=0.1)
    >>> run = train(lambda: mlp(64, 10), fed, "fedlada", rounds=100, cohort=10)
    """
    if torch.is_inference_mode_enabled():
        raise ValueError("train: inside torch.inference_mode() nothing can be trained; call it outside")
    keep_freed_memory()
    if not isinstance(fed, Federation):
        raise ValueError(f"fed: expected a Federation (see Federation.from_arrays), not {type(fed).__name__}")
    settings = Settings(
        rounds=rounds,
        cohort=cohort,
        local_steps=local_steps,
        local_epochs=local_epochs,
        batch_size=batch_size,
        weight_decay=weight_decay,
        lr_decay=lr_decay,
        clip=clip,
        weights=weights,
        seed=seed,
        evaluate_every=evaluate_every,
        min_clients=min_clients,
    )
    settings.check_clients(len(fed))
    check_loss(loss)
    check_engine(engine)
    check_device(device)
    check_out(out, resume)
    workers, timeout = check_workers(workers, timeout)
    if timeout is not None and engine in IN_PROCESS and remote is None:
        raise ValueError(f"timeout = {timeout} is not allowed with engine = {engine!r}; it is for 'processes' and 'ray'")
    check_store(store)
    if ray_address != "local" and engine != "ray":
        raise ValueError(f"ray_address = {ray_address!r} is not allowed with engine = {engine!r}; it is for 'ray'")
    algo = make(algorithm) if isinstance(algorithm, str) else algorithm
    if not isinstance(algo, Algorithm):
        raise ValueError(f"algorithm: expected a name or fedkeel.algorithm(...), not {type(algo).__name__}")
    if algo.facts.uniform and weights != "uniform":
        raise ValueError(f"weights = {weights!r} is not allowed with {algo.name}; it is only defined for 'uniform'")
    flat = make_flat(model, settings.seed, device, dtype, private=algo.facts.private)
    check_inside(flat.module, algo.facts.needs, algo.name)
    if remote is None:
        check_fit(flat, fed, (fed.x, fed.y), loss)
    if fed.test is not None:
        check_fit(flat, fed, fed.test, loss, where="test: ")
    check_metrics(metrics, algo)
    if config is None:
        config = {"algorithm": {"name": algo.name, **dataclasses.asdict(algo)}, **dataclasses.asdict(settings)}  # type: ignore[call-overload]
        config |= {"note": "model and data were Python objects: go on with train(..., out=, resume=True)"}
    runner = EngineChoice(engine, workers, timeout, {"address": ray_address, "device": device}, remote)
    out = Path(out) if out else None
    goal = objective(flat, loss, settings.weight_decay, settings.clip)
    trainer = Trainer(flat, fed, algo, settings, goal, runner, out, resume, store, config, metrics)
    if callable(progress):
        return trainer.fit(progress)
    if not progress:
        return trainer.fit(lambda row: None)
    from fedkeel.engine.progress import RoundBar

    with RoundBar(algo.name, rounds) as bar:
        return trainer.fit(bar)
