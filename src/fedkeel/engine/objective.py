"""What a run minimises: the model on its device, and the loss. Also checks that they fit the data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import FlatModel, copy_of, set_memory_format
from fedkeel.core.steps import Loss, Objective, Step, whole_batch
from fedkeel.data.dataset_pool import DatasetPool, kind_of
from fedkeel.data.federation import Federation, function_identity
from fedkeel.data.texts import Texts
from fedkeel.engine.evaluation import evaluating, unchanged
from fedkeel.engine.own_code import OwnCode, check_loss, check_step
from fedkeel.engine.seeding import GENERATORS
from fedkeel.engine.settings import Settings
from fedkeel.errors import describe, refuse

# The loss -------------------------------------------------------------------------------------------------------------


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over the last dimension of the output. In sequences every position counts like a sample."""
    if output.dim() > 2:
        output, target = output.flatten(0, -2), target.flatten()
    return functional.cross_entropy(output, target.long())


def cross_entropies(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of every sample, [B, ..., classes] -> [B]."""
    if output.dim() == 2:
        return functional.cross_entropy(output, target, reduction="none")
    each = functional.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none")
    return each.view(len(target), -1).mean(-1)


def loss_name(loss: Any) -> str:
    """A name for a loss. A run that resumes compares it with the name in the checkpoint."""
    return function_identity(cross_entropy if loss is functional.cross_entropy else loss)


def objective(
    model: FlatModel,
    loss: Loss | None,
    weight_decay: float,
    clip: float | None,
    precision: str | None = None,
    step: Step | None = None,
) -> Objective:
    """What a run minimises: the user's loss or step, or cross-entropy. Only for cross-entropy the loss of each sample is
    known."""
    if loss is not None or step is not None:
        return Objective(model, loss or cross_entropy, weight_decay, clip, precision=precision, step=step)
    return Objective(model, cross_entropy, weight_decay, clip, cross_entropies, precision)


# The model -------------------------------------------------------------------------------------------------------------


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


def usable_device(name: str) -> torch.device:
    """The device of this name, "auto" included. Raises ValueError if nothing can be computed there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()  # fails on "meta", whose tensors have no numbers
    except (RuntimeError, AssertionError, ImportError) as error:  # NotImplementedError is a RuntimeError
        raise ValueError(f"device = {name!r} cannot be used here: {describe(error)}") from error
    return device


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


# A model with its data and its loss -------------------------------------------------------------------------------------


def prepared(
    model: nn.Module | Callable[[], nn.Module],
    fed: Federation,
    algo: Algorithm,
    settings: Settings,
    own: OwnCode,
    dtype: torch.dtype | None,
    device: str,
    remote: bool,
) -> tuple[FlatModel, Federation, Objective]:
    """The model as a flat vector, the data as the model reads them, and what the run minimises.

    Raises if they do not fit together. remote: the clients are on other machines, and so are their data.
    """
    flat = make_flat(model, settings.seed, device, dtype, algo.facts.private, settings.memory_format)
    if isinstance(fed.x, Texts):
        from fedkeel.data.tokens import as_model_reads

        fed = as_model_reads(flat.module, fed)
    if algo.facts.needs:
        from fedkeel.core.features import check_inside

        if own.step is not None:
            raise ValueError(f"step is not allowed with {algo.name}; it looks into the model, so give loss= instead")
        check_inside(flat.module, algo.facts.needs, algo.name)
    if not remote:
        check_fit(flat, fed, (fed.x, fed.y), own)
    if fed.test is not None:
        check_fit(flat, fed, fed.test, own, where="test: ")
    return flat, fed, objective(flat, own.loss, settings.weight_decay, settings.clip, settings.precision, own.step)


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
        return check_step(own.step, model, whole_batch(x, model.cast_nested(y)), where)
    try:
        # In training mode, BatchNorm may refuse so few samples.
        with torch.enable_grad(), evaluating(model.module), unchanged(model.module):
            output = model.module(x)
    except Exception as error:
        raise _does_not_take(model, x, where, error) from error
    if loss is not None:
        return check_loss(loss, output, model.cast(y), where)
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
