"""Models by name for a federation: `fk.model` and `fk.lora`, and what `--model` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fedkeel.data.dataset_pool import kind_of
from fedkeel.data.federation import Federation, misplaced
from fedkeel.data.texts import Texts
from fedkeel.data.tokens import Reading, WordTokenizer, tokenised
from fedkeel.models import model_for, outputs_of
from fedkeel.runs.config import PRETRAINED, SETTINGS

LENGTH: Any = SETTINGS["length"].default  # tokens of a text
RANK: int = SETTINGS["lora_rank"].metadata["filled"]
ALPHA: float = SETTINGS["lora_alpha"].metadata["filled"]


def model(name: str, fed: Federation, *, length: int = LENGTH, classes: int | None = None) -> nn.Module:
    """The model `name`, sized to the data. `fedkeel run --help` lists the names under --model.

    Its weights are drawn by torch's generator. For new weights with every seed, pass a function to `train`:
    `lambda: fk.model("mlp", fed)`. If the samples are texts, `model.reads` says how the model reads them; `train` uses it.

    length: tokens of a text. Longer texts are cut off.
    classes: number of outputs (default: as the data say).

    >>> fk.train(fk.model("lenet5", fed), fed, "scaffold")
    """
    _check_fed(fed)
    if not isinstance(name, str):
        raise ValueError(f"model: expected a name, not {type(name).__name__}")
    if name.startswith(PRETRAINED):
        return lora(name.removeprefix(PRETRAINED), fed, length=length, classes=classes)
    return named_model(name, fed, length, classes)[0]()


def lora(
    name: str,
    fed: Federation,
    *,
    rank: int = RANK,
    alpha: float = ALPHA,
    targets: str = "auto",
    layers: int | None = None,
    length: int = LENGTH,
    classes: int | None = None,
) -> nn.Module:
    """A pretrained language model with low-rank adapters (LoRA). Only adapters and head are trained and sent; docs/text.md.

    name: a folder, or a name on the Hugging Face hub.
    rank, alpha: an adapter is alpha / rank * B A.  targets: modules that get an adapter, joined by commas.
    layers: how many blocks get adapters, counted from the last (default: all).
    length: tokens of a text. Longer texts are cut off.  classes: number of outputs (default: as the data say).

    >>> fk.train(fk.lora("openai-community/gpt2", fed, rank=16), fed, "fedit-adam")
    """
    from fedkeel.models.pretrained.classifier import Lora

    _check_fed(fed)
    return named_model(PRETRAINED + name, fed, length, classes, Lora(rank, alpha, targets, layers))[0]()


def named_model(
    name: str, fed: Federation, length: int, classes: int | None = None, adapters: Any = None
) -> tuple[Callable[[], nn.Module], Federation]:
    """A function that makes the model, and the federation as that model reads it.  adapters: a Lora, for models hf:NAME."""
    pretrained = name.removeprefix(PRETRAINED) if name.startswith(PRETRAINED) else None
    tokenizer: Any = None
    if pretrained is not None:
        from fedkeel.models.pretrained.backbone import load_tokenizer, need_extra

        need_extra()
        tokenizer = load_tokenizer(pretrained)
    reads = None
    if isinstance(fed.x, Texts):
        tokenizer = tokenizer or WordTokenizer(fed.x)
        reads = Reading(tokenizer, length)
        fed = tokenised(fed, reads.tokenizer, length)
    elif tokenizer and fed.vocabulary != tokenizer.vocabulary:
        raise ValueError(f"model: {name!r} reads texts, but the data {fed.origin.get('data', '')!r} are not texts")
    if pretrained is not None:
        from fedkeel.models.pretrained.classifier import classifier

        texts = [fed.x] + ([] if fed.test is None else [fed.test[0]])
        make: Callable[[], nn.Module] = classifier(pretrained, classes or outputs_of(fed), adapters, texts)
    else:
        make = model_for(fed, name, classes)
    return (make if reads is None else lambda: _with_reading(make(), reads)), fed


def _with_reading(module: nn.Module, reads: Reading) -> nn.Module:
    module.reads = reads  # type: ignore[assignment]
    return module


def _check_fed(fed: object) -> None:
    if not isinstance(fed, Federation):
        raise ValueError(f"fed: expected a Federation, not {kind_of(fed)}{misplaced(fed)}")
