"""Runs whose data and model have names: what a config stands for, and the training that it describes."""

from __future__ import annotations

from fedkeel.runs.stored import stored

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.runs.config import PRETRAINED, SPLIT_OPTIONS, RunConfig, read, resolve, settings_of, with_lora_defaults

if TYPE_CHECKING:
    from torch import nn

    from fedkeel.data.federation import Dataset, Federation
    from fedkeel.engine.result import Run


def federation(config: RunConfig, data: Dataset | None = None) -> Federation:
    """The clients of a run and their data. data: what its name stands for, if that is loaded already."""
    from fedkeel.data.load import load

    options = {key: getattr(config, key) for key in SPLIT_OPTIONS if getattr(config, key) is not None}
    data = data or load(config.data, config.data_dir, config.augment)
    return data.split(config.split, clients=config.clients, seed=config.split_seed, **options)


def task(config: RunConfig, fed: Federation | None = None) -> tuple[Callable[[], nn.Module], Federation]:
    """What makes the model, and the data as it reads them; wrong names and numbers of either are found here."""
    fed = _readable(config, fed or federation(config))
    make = _maker(config, fed)
    make()
    return make, fed


def _readable(config: RunConfig, fed: Federation) -> Federation:
    """The federation with token ids in the place of texts."""
    from fedkeel.data.texts import Texts, Words, tokenised

    tokenizer: Any = None
    if config.model.startswith(PRETRAINED):
        from fedkeel.models.pretrained.backbone import load_tokenizer, need_extra

        need_extra()
        tokenizer = load_tokenizer(config.model.removeprefix(PRETRAINED))
    if isinstance(fed.x, Texts):
        return tokenised(fed, tokenizer or Words(fed.x), config.length)
    if tokenizer and fed.vocabulary != tokenizer.vocabulary:
        raise ValueError(f"model: {config.model!r} reads texts, and data {config.data!r} are none")
    return fed


def _maker(config: RunConfig, fed: Federation) -> Callable[[], nn.Module]:
    from fedkeel.models import make_model

    shape, classes, vocabulary = fed.shape, fed.classes or int(fed.y.max()) + 1, fed.vocabulary
    if not config.model.startswith(PRETRAINED):
        return lambda: make_model(config.model, shape, classes, vocabulary)
    from fedkeel.models.pretrained.classifier import Lora, classifier

    config = with_lora_defaults(config)
    lora = Lora(config.lora_rank, config.lora_alpha, config.lora_targets, config.lora_layers)  # type: ignore[arg-type]
    texts = [fed.x] + ([] if fed.test is None else [fed.test[0]])
    return classifier(config.model.removeprefix(PRETRAINED), classes, lora, texts)


def run(
    config: RunConfig,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | Callable[[dict[str, Any]], None] = True,
    *,
    fresh: bool = False,
    fed: Federation | None = None,
) -> Run:
    """Trains as the config says.  fresh: a run that `out` holds is replaced.  fed: the config's data, if they are loaded."""
    from fedkeel.engine.state import directory
    from fedkeel.core.registry import make
    from fedkeel.engine.train import train

    config = resolve(config)
    model, fed = task(config, fed)
    if out is not None and fresh:
        directory.clear(Path(out))
    return train(
        model,
        fed,
        make(config.algorithm, **config.hyperparameters),
        out=out,
        resume=resume,
        progress=progress,
        config=config.model_dump(exclude_none=True),
        **settings_of(config),
    )


def resume(path: str | Path, *, progress: bool | Callable[[dict[str, Any]], None] = True, **changes: Any) -> Run:
    """Goes on with the run in a directory, e.g. `fk.resume("runs/x", rounds=200)`; a complete run is read back.

    changes: new values of rounds, evaluate_every or of the engine's settings; anything else would be another run.
    """
    return run(stored(path).changed(**changes), path, resume=True, progress=progress)


