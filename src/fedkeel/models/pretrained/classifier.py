"""A pretrained transformer that is fine-tuned with low-rank adapters (LoRA): token ids in, scores of classes out.

Only the adapters and the classification head are trained and sent.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel.models.length_buckets import in_buckets
from fedkeel.models.pretrained.backbone import blocks_path, load_backbone, load_tokenizer, sharing
from fedkeel.models.pretrained.hidden_states import HiddenStates, places_for

CHUNK = 64  # texts per forward pass without gradients; keeps the memory of an evaluation small
# Models for which the paper adapts other modules than peft does by default (1.9 % of GPT-2, section 6.3).
TARGETS = {"gpt2": ("c_attn", "c_proj", "c_fc")}


@dataclass(frozen=True)
class Lora:
    """Which linear maps W get an adapter W + alpha / rank * B A, with A [rank, in] random and B [out, rank] zero."""

    rank: int = 16
    alpha: float = 16.0
    targets: str = "auto"  # names of modules, separated by commas; auto: the usual ones of the architecture
    layers: int | None = None  # how many blocks get adapters, counted from the last; None: all

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora_rank = {self.rank!r} is not allowed; it must be a whole number >= 1")
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"lora_alpha = {self.alpha!r} is not allowed; it must be a number > 0")


class Reader(nn.Module):
    """The transformer: token ids [n, L], where 0 is padding -> features [n, h], the input of the last layer."""

    def __init__(self, model: Any, pad: int, tokens: int, segments: bool, first: int, hidden: HiddenStates | None) -> None:
        super().__init__()
        self.model = model
        self.pad, self.tokens, self.segments = pad, tokens, segments
        self.first, self.hidden = first, hidden  # the first block with an adapter, and the files with its inputs
        self.path = blocks_path(model) if first else ""

    def forward(self, x: Tensor) -> Tensor:
        return in_buckets(self._read, x)

    def _read(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() and len(x) > CHUNK:
            return torch.cat([self._read(part) for part in x.split(CHUNK)])
        known = None if self.hidden is None else self.hidden.of(x, self.before)
        if known is None:
            return self._features(x)
        with resumed(self._blocks(), self.first, known.to(x.device, next(self.model.parameters()).dtype)):
            return self._features(x)

    def _features(self, x: Tensor) -> Tensor:
        return self.model(**self._inputs(x)).logits  # type: ignore[no-any-return]

    def _inputs(self, x: Tensor) -> dict[str, Any]:
        real, ids = x > 0, x - 1
        given = {"input_ids": torch.where(real, ids % self.tokens, self.pad), "attention_mask": real.long()}
        if self.segments:
            given["token_type_ids"] = torch.where(real, ids // self.tokens, 0)
        return given

    def _blocks(self) -> Sequence[nn.Module]:
        return self.model.get_submodule(self.path)  # type: ignore[no-any-return]

    @torch.no_grad()
    def before(self, x: Tensor) -> Tensor:
        """The input of the first adapted block, [n, L, h]. The blocks after it are not run.

        Uses one thread, as the engines do: several threads may add numbers in another order.
        """

        def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Reached(args[0] if args else kwargs["hidden_states"])

        hook = self._blocks()[self.first].register_forward_pre_hook(stop, with_kwargs=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._features(x)
        except _Reached as reached:
            return reached.hidden
        finally:
            torch.set_num_threads(threads)
            hook.remove()
        raise RuntimeError(f"block {self.first} of {type(self.model).__name__} was never run")


class _Reached(Exception):
    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


@contextlib.contextmanager
def resumed(blocks: Sequence[nn.Module], first: int, hidden: Tensor) -> Iterator[None]:
    """A context in which the blocks before `first` do nothing, and `first` gets these hidden states."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (hidden, *args[1:]), {key: value for key, value in kwargs.items() if key != "hidden_states"}

    def pass_on(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden_states

    hook = blocks[first].register_forward_pre_hook(enter, with_kwargs=True)
    for block in blocks[:first]:
        block.forward = pass_on
    try:
        yield
    finally:
        hook.remove()
        for block in blocks[:first]:
            del block.forward


class TextClassifier(nn.Sequential):
    """Reader and head. Copies share the frozen weights; the state dict holds only what is trained."""

    one_by_one = "it skips the padding of each batch"  # the reason why the vectorized engine cannot run it

    def __init__(self, reader: Reader, last: nn.Linear, name: str, head: str) -> None:
        """name: the folder or the name of the pretrained model.  head: where its last layer was."""
        super().__init__(reader, last)
        self.name, self.head = name, head

    def __deepcopy__(self, memo: dict[int, Any]) -> TextClassifier:
        memo.update(sharing(self))
        new = TextClassifier.__new__(TextClassifier)
        memo[id(self)] = new
        new.__dict__ = copy.deepcopy(self.__dict__, memo)
        return new

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """None: position tables and masks are constants, so they are neither averaged nor sent."""
        return iter(())

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The adapters and the head. The frozen weights are in the files of the pretrained model."""
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        return {name: z for name, z in super().state_dict(*args, **kwargs).items() if name in trained}

    def save_pretrained(self, folder: str) -> None:
        """Writes the adapters and the head into a folder, from which peft loads them."""
        from fedkeel.models.pretrained.adapter_folder import save_adapters

        save_adapters(self, Path(folder))


def classifier(name: str, classes: int, lora: Lora, texts: Sequence[Tensor] = ()) -> Callable[[], TextClassifier]:
    """A function that makes the model `name` with adapters.

    texts: token ids [n, L] that it will read. If only the last blocks have adapters, the input of the first adapted block
    is computed once per text and kept on disk.
    """
    backbone, tokenizer = load_backbone(name, classes), load_tokenizer(name)
    longest, most = max((x.shape[1] for x in texts), default=0), _most(backbone.model)
    if longest > most:
        raise ValueError(f"length = {longest} is not allowed with model 'hf:{name}'; it must be at most {most}")
    first = _first(backbone.model, lora.layers)
    facts = (backbone.pad, tokenizer.size, tokenizer.segments, first)
    hidden = None
    if first and texts:
        hidden = places_for(f"{backbone.digest} {first}", texts, backbone.model.config.get_text_config().hidden_size)

    def make() -> TextClassifier:
        model, last = backbone.copy()
        adapt(model, lora)
        return TextClassifier(Reader(model, *facts, hidden), last, name, backbone.head)

    return make


def _most(model: Any) -> int:
    """The longest text that the model can read."""
    return int(getattr(model.config, "max_position_embeddings", None) or 1_000_000)


def _first(model: Any, layers: int | None) -> int:
    """The number of the first block that gets adapters."""
    if layers is None:
        return 0
    depth = len(model.get_submodule(blocks_path(model)))
    if not 1 <= layers <= depth:
        raise ValueError(f"lora_layers = {layers!r} is not allowed; it must be from 1 to the number of blocks, {depth}")
    return depth - layers


def adapt(model: Any, lora: Lora) -> None:
    """Puts the adapters into a model. Parameters that were trainable before stay trainable."""
    from peft import LoraConfig, inject_adapter_in_model
    from transformers.pytorch_utils import Conv1D

    trained = [p for p in model.parameters() if p.requires_grad]
    inside = [f"{model.base_model_prefix}."]
    if lora.layers is not None:
        path, depth = blocks_path(model), len(model.get_submodule(blocks_path(model)))
        inside = [f"{path}.{block}." for block in range(_first(model, lora.layers), depth)]
    linear = [name for name, part in model.named_modules() if isinstance(part, nn.Linear | Conv1D)]
    linear = [name for name in linear if name.startswith(tuple(inside))]
    wanted = targets(model, lora.targets)
    names = [name for name in linear if name.rpartition(".")[2] in wanted]
    if not names:
        known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        raise ValueError(f"lora_targets = {lora.targets!r} is not allowed; {type(model).__name__} has {known}")
    transposed = isinstance(model.get_submodule(names[0]), Conv1D)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=names, fan_in_fan_out=transposed)  # type: ignore[arg-type]
    inject_adapter_in_model(config, model)
    for p in trained:
        p.requires_grad_(True)


def targets(model: Any, names: str) -> tuple[str, ...]:
    """The names of the modules to adapt."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    if names != "auto":
        return tuple(name.strip() for name in names.split(",") if name.strip())
    kind = model.config.model_type
    usual = TARGETS.get(kind) or USUAL.get(kind)
    if not usual or isinstance(usual, str):
        raise ValueError(f"lora_targets = 'auto' is not allowed with {kind!r} models; name the modules: query,value")
    return tuple(usual)
