"""Model and step of training code that people already have: a LightningModule, or a Trainer of Hugging Face."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from fedkeel.core.steps import Step


def from_lightning(module: Any) -> tuple[nn.Module, Step]:
    """(model, step) of a LightningModule: the step is its `training_step`.

    Its optimizers, schedulers and loggers are not used: the federated method does the steps. What it logs is ignored.

    >>> model, step = fk.from_lightning(MyModule())
    >>> fk.train(model, fed, "fedavg", step=step)
    """
    if not isinstance(module, nn.Module) or not callable(getattr(module, "training_step", None)):
        raise ValueError(f"module: expected a LightningModule with a training_step, not {type(module).__name__}")
    model = copy.deepcopy(module)
    for name in ("log", "log_dict"):  # without a Trainer of Lightning, these would warn at every step
        setattr(model, name, _ignore)
    return model, lightning_step


def _ignore(*_: Any, **__: Any) -> None:
    pass


def lightning_step(model: Any, batch: Any) -> Tensor:
    """The loss that the `training_step` of a LightningModule returns for a batch."""
    found = model.training_step(batch, 0)
    loss = found["loss"] if isinstance(found, dict) else found
    if not isinstance(loss, Tensor):
        raise ValueError(f"training_step returned {type(loss).__name__}; it must return the loss, or a dict with it")
    return loss


def from_trainer(trainer: Any) -> tuple[nn.Module, Step]:
    """(model, step) of a Trainer of Hugging Face: the step is its `compute_loss`, so your own subclass works too.

    Its optimizer and its data are not used. A batch is a dictionary with the inputs and `labels`; a pair (x, y) counts as
    input_ids and labels.

    >>> model, step = fk.from_trainer(trainer)
    >>> fk.train(model, fk.Federation.from_datasets(parts, collate=trainer.data_collator), "fedavg", step=step)
    """
    model = getattr(trainer, "model", None)
    if not isinstance(model, nn.Module) or not callable(getattr(trainer, "compute_loss", None)):
        raise ValueError(f"trainer: expected a transformers.Trainer with a model, not {type(trainer).__name__}")

    def step(model: nn.Module, batch: Any) -> Tensor:
        inputs = batch if isinstance(batch, dict) else {"input_ids": batch[0], "labels": batch[1]}
        loss: Tensor = trainer.compute_loss(model, inputs)
        return loss

    return model, step
