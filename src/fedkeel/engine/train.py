"""`train`: checks what it was given, and runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.core.algorithm import Algorithm, make
from fedkeel.core.device import GENERATORS, named_devices, usable_device
from fedkeel.core.flat import FlatModel, copy_of, set_memory_format
from fedkeel.core.steps import Loss, Step, check_one_number, whole_batch
from fedkeel.data.dataset_pool import DatasetPool, kind_of
from fedkeel.data.federation import Federation, misplaced
from fedkeel.data.tokens import as_model_reads
from fedkeel.engine.callbacks import Callback, check_callbacks
from fedkeel.engine.evaluation import evaluating, unchanged
from fedkeel.engine.fleet import Fleet
from fedkeel.engine.loop import Trainer
from fedkeel.engine.loss import objective
from fedkeel.engine.machine import keep_freed_memory
from fedkeel.engine.own_metrics import own_metrics, separate
from fedkeel.engine.participation import Participation
from fedkeel.engine.result import Run
from fedkeel.engine.runners.runner import EngineChoice, Remote
from fedkeel.engine.settings import Settings, check_loss, check_out, check_step, check_store
from fedkeel.engine.state.directory import RunDirectory
from fedkeel.errors import describe, refuse

Progress = bool | Callable[[dict[str, Any]], None]  # a bar on the screen, or a function that gets every row of the history


def seeded(make_model: Callable[[], Any], seed: int) -> Any:
    """What the function returns if it starts from this seed. The global generators of torch stay as they were."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with GENERATORS, torch.random.fork_rng(devices=gpus):
            torch.manual_seed(seed)
            return make_model()
    finally:
        if not gpus:  # torch seeds GPUs when they are first used, by the seed that it was given last
            torch.cuda.manual_seed_all(torch.initial_seed())


def make_flat(
    model: nn.Module | Callable[[], nn.Module],
    seed: int,
    device: str,
    dtype: torch.dtype | None,
    private: bool = False,
    memory_format: str | None = None,
) -> FlatModel:
    """The user's module, or the one that the user's function makes from the seed, on device, dtype and memory format.

    The user's module is never changed: a copy of it is trained.
    """
    if not isinstance(model, nn.Module):
        model = _made(model, seed)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise refuse("dtype", dtype, "a floating-point torch.dtype, or None")
    place = usable_device(device)
    module = copy_of(model)
    try:
        module = module.to(device=place, dtype=dtype)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device = {device!r} cannot be used here: {describe(error)}") from error
    if memory_format is not None:
        if memory_format == "channels_last" and not any(p.dim() == 4 for p in module.parameters()):
            raise refuse("memory_format", memory_format, "'contiguous' for a model without 2-d convolutions")
        set_memory_format(module, memory_format)
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            if part.max_norm is not None:
                raise ValueError("model: an embedding with max_norm changes its own weights; clip them in forward instead")
            part.sparse = False  # a dense gradient has the same numbers and can be added to others
    # A model in evaluation mode is put into training mode. Single layers in evaluation mode stay in it.
    flat = FlatModel(module if module.training else module.train(), private)
    if flat.device.type == "mps" and flat.has_buffers:
        raise ValueError("device = 'mps' cannot train a model with buffers: their mean needs float64; use device='cpu'")
    return flat


def _made(make_model: object, seed: int) -> nn.Module:
    """The module that the user's function makes."""
    if not callable(make_model):
        kind = type(make_model).__name__
        raise ValueError(f"model: expected a torch.nn.Module or a function that makes one, not {kind}")
    try:
        made = seeded(make_model, seed)
    except (Exception, SystemExit) as error:
        raise ValueError(f"model: the function that makes it fails: {describe(error)}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"model: the function returned a {type(made).__name__}, not a torch.nn.Module")
    return made


def train(
    model: nn.Module | Callable[[], nn.Module],
    fed: Federation,
    algorithm: str | Algorithm,
    *,
    rounds: int = Settings.rounds,
    cohort: int | float | Sequence[Sequence[int]] | Callable[[int], Any] = Settings.cohort,
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
        that returns client ids, a count or a fraction.
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
        cohort=cohort,
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
    check_loss(loss)
    check_step(step, loss)
    callbacks = check_callbacks(callbacks)
    check_out(out, resume)
    check_store(store)
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
    return train_checked(
        model, fed, algo, settings, config, own, dtype, out, resume, progress, store, remote, returns_partial=True
    )


@dataclass(frozen=True)
class OwnCode:
    """The functions and objects of the user that a run calls."""

    loss: Loss | None = None  # None: cross-entropy
    step: Step | None = None
    metrics: Sequence[Any] = ()  # functions of (model, fed), and objects of torchmetrics
    callbacks: Sequence[Callback] = ()


NO_CODE = OwnCode()


def train_checked(
    model: nn.Module | Callable[[], nn.Module],
    fed: Federation,
    algo: Algorithm,
    settings: Settings,
    config: dict[str, Any],
    own: OwnCode = NO_CODE,
    dtype: torch.dtype | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress = True,
    store: str = "auto",
    remote: Remote | None = None,
    returns_partial: bool = False,
) -> Run:
    """As `train`, for settings that `Settings.check_with` has checked. What is left to check needs the model.

    returns_partial: Ctrl-C returns the run so far, if a round is complete.
    """
    if torch.is_inference_mode_enabled():
        raise ValueError("train: inside torch.inference_mode() nothing can be trained; call it outside")
    keep_freed_memory()
    devices = named_devices(settings.devices)
    device = str(devices[0]) if devices else settings.device
    flat = make_flat(model, settings.seed, device, dtype, algo.facts.private, settings.memory_format)
    fed = as_model_reads(flat.module, fed)
    if algo.facts.needs:
        from fedkeel.core.features import check_inside

        if own.step is not None:
            raise ValueError(f"step is not allowed with {algo.name}; it looks into the model, so give loss= instead")
        check_inside(flat.module, algo.facts.needs, algo.name)
    if remote is None:
        check_fit(flat, fed, (fed.x, fed.y), own)
    if fed.test is not None:
        check_fit(flat, fed, fed.test, own, where="test: ")
    ray = {"address": settings.ray_address, "device": settings.device}
    runner = EngineChoice(settings.engine, settings.workers, settings.timeout, ray, remote, devices)
    goal = objective(flat, own.loss, settings.weight_decay, settings.clip, settings.precision, own.step)
    measured = (settings.metrics, own_metrics(own.metrics, flat.device), own.callbacks, returns_partial)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(RunDirectory(Path(out), resume)) if out else None
        trainer = Trainer(flat, fed, algo, settings, goal, runner, folder, store, config, *measured)
        if callable(progress):
            return trainer.fit(progress)
        if not progress:
            return trainer.fit(lambda row: None)
        from fedkeel.engine.progress import progress_bar

        return trainer.fit(stack.enter_context(progress_bar(algo.name, settings.rounds)))


# Do model, data and loss fit together? -----------------------------------------------------------------------------


def check_fit(model: FlatModel, fed: Federation, data: tuple[Any, Any], own: OwnCode, where: str = "") -> None:
    """Raises if the model does not take the data, or has no output for some label. With a loss of the user's: raises if the
    loss does not take output and target. where: the start of the message."""
    loss = own.loss
    if isinstance(data[0], DatasetPool):
        x, labels = data[0].batch(np.arange(min(2, len(data[0]))))
        if not isinstance(labels, Tensor) and own.step is None:
            raise ValueError(
                f"{where}data: a batch is a {kind_of(x)}, not a pair (x, y); pass step=, or a collate= that makes pairs"
            )
        x, y = model.cast_nested(x), model.cast_nested(labels)
    else:
        labels = data[1]
        x, y = model.cast(data[0][:2], fed.prepare), labels[:2].to(model.device)
    if own.step is not None:
        return _check_step(own.step, model, whole_batch(x, model.cast_nested(y)), where)
    try:
        # In training mode, BatchNorm may refuse so few samples.
        with torch.enable_grad(), evaluating(model.module), unchanged(model.module):
            output = model.module(x)
    except Exception as error:
        raise _does_not_take(model, x, where, error) from error
    if loss is not None:
        return _check_loss(loss, output, model.cast(y), where)
    if labels.is_floating_point():
        raise ValueError(
            f"{where}loss: the targets are not class numbers; pass loss=, for example torch.nn.functional.mse_loss"
        )
    low, high = int(labels.min()), int(labels.max())
    if not isinstance(output, Tensor) or output.dim() < 2 or low < 0 or high >= output.shape[-1]:
        width = output.shape[-1] if isinstance(output, Tensor) and output.dim() > 1 else "no"
        raise ValueError(
            f"{where}labels: they go from {low} to {high}, but the model has {width} outputs (labels start at 0)"
        )
    if y.shape != output.shape[:-1]:
        raise ValueError(
            f"{where}labels: their shape {list(y.shape[1:])} per sample does not fit the output {list(output.shape[1:])}"
        )


def _check_step(step: Step, model: FlatModel, batch: Any, where: str) -> None:
    """Raises if the user's step fails on two samples, or does not return one number that depends on the parameters."""
    try:
        with torch.enable_grad(), evaluating(model.module), unchanged(model.module):
            value = step(model.module, batch)
    except Exception as error:
        raise ValueError(f"{where}step: it fails on a batch of two samples: {describe(error)}") from error
    _check_value(value, f"{where}step")


def _does_not_take(model: FlatModel, x: Any, where: str, error: Exception) -> ValueError:
    """The error for a model that fails on two samples."""
    if not isinstance(x, Tensor):
        return ValueError(f"{where}model: it does not take inputs that are a {kind_of(x)}: {describe(error)}")
    if not x.is_floating_point():
        with contextlib.suppress(Exception), torch.no_grad(), evaluating(model.module):
            model.module(x.to(model.dtype))
            kind = str(x.dtype).removeprefix("torch.")
            return ValueError(
                f"{where}x: the inputs are whole numbers ({kind}), but the model needs floating-point numbers; pass "
                "x.float() or x.astype('float32')"
            )
    return ValueError(f"{where}model: it does not take samples of shape {list(x.shape[1:])}: {error}")


def _check_loss(loss: Loss, output: Any, target: Tensor, where: str) -> None:
    """Raises if the loss does not return one number that depends on the output. An exception inside of it is ignored: it may
    need more than the two samples of this check."""
    try:
        inspect.signature(loss).bind(output, target)
    except TypeError as error:
        raise ValueError(f"{where}loss: it must take two arguments, output and target: {error}") from None
    except ValueError:  # Python does not know the arguments of some functions written in C
        pass
    try:
        with torch.enable_grad(), GENERATORS, torch.random.fork_rng(devices=[]):
            value = loss(output, target)
    except Exception:
        return
    _check_value(value, f"{where}loss")


def _check_value(value: Any, what: str) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{what}: it returns a {type(value).__name__}; it must be a tensor, the mean over the batch")
    check_one_number(value)
    if not value.requires_grad:
        raise ValueError(f"{what}: it does not depend on the trained parameters; is it detached somewhere?")
