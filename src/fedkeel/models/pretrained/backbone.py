"""A pretrained Hugging Face model and its tokenizer, loaded once per process and never changed."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedkeel.data.texts import PAIR


@dataclass(frozen=True)
class Backbone:
    """A classifier whose pretrained weights are frozen. Weights that the files do not hold are trained."""

    model: Any  # a transformers model for sequence classification, without its last layer
    last: nn.Linear  # that layer: features [n, h] -> scores [n, classes]
    head: str  # where that layer was in the model
    fresh: frozenset[str]  # parameters of model that the files did not hold
    pad: int  # the token id that fills short texts

    def copy(self) -> tuple[Any, nn.Linear]:
        """Model and last layer. The copy shares the frozen weights; the fresh ones are drawn again."""
        model = copy.deepcopy(self.model, sharing(self.model))
        last = copy.deepcopy(self.last)
        spread = getattr(model.config, "initializer_range", 0.02)
        drawn = [p for name, p in model.named_parameters() if name in self.fresh and p.dim() > 1]
        if "last" in self.fresh:
            drawn.append(last.weight)
        for p in drawn:
            nn.init.normal_(p, std=spread)
        return model, last

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the frozen weights and of the versions of the libraries that compute with them."""
        import transformers

        digest = hashlib.blake2b(f"{torch.__version__} {transformers.__version__}".encode(), digest_size=16)
        for name, p in self.model.named_parameters():
            if not p.requires_grad:
                digest.update(name.encode())
                digest.update(p.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def sharing(module: nn.Module) -> dict[int, Any]:
    """A memo for copy.deepcopy: with it, copies share the memory of frozen parameters and of constants."""
    frozen = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters() if not p.requires_grad}
    constants = {id(b): b for part in module.modules() for b in part._buffers.values() if b is not None}
    return frozen | constants


@functools.cache
def load_backbone(name: str, classes: int) -> Backbone:
    """The model `name` for that many classes.  name: a folder, or a name on the hub."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with _quiet():
        config = _fetched(name, AutoConfig.from_pretrained)
        for key, value in config.to_dict().items():
            # The paper states no dropout. Without it, the part before the first adapter computes the same in every step.
            if "drop" in key and isinstance(value, float):
                setattr(config, key, 0.0)
        config.num_labels = classes
        if config.pad_token_id is None:
            end = config.eos_token_id
            config.pad_token_id = end[0] if isinstance(end, list) else end or 0
        make = functools.partial(
            AutoModelForSequenceClassification.from_pretrained,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        model, info = _fetched(name, make)
    missing = set(info["missing_keys"]) | {key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]}
    return as_backbone(model, missing)


def as_backbone(model: Any, missing: set[str]) -> Backbone:
    """Takes the last layer off a classifier and freezes the rest, except its head and the parameters in `missing`."""
    inside = f"{model.base_model_prefix}."
    heads = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and not name.startswith(inside)]
    if not heads:
        raise ValueError(f"model: {type(model).__name__} has no classification head to train")
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(inside) or name in missing)
    last = model.get_submodule(heads[-1])
    model.set_submodule(heads[-1], nn.Identity())  # the scores of the model are now the features
    fresh = {name for name in missing if not name.startswith(f"{heads[-1]}.")}
    if f"{heads[-1]}.weight" in missing:
        fresh.add("last")
    return Backbone(model, last, heads[-1], frozenset(fresh), model.config.pad_token_id)


def blocks_path(model: Any) -> str:
    """The path to the list of the model's blocks, the layers that are applied one after the other."""
    depth = model.config.get_text_config().num_hidden_layers
    paths = [name for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == depth]
    if not paths:
        raise ValueError(f"lora_layers: {type(model).__name__} has no list of {depth} blocks; leave lora_layers out")
    return str(paths[0])


# Tokens ---------------------------------------------------------------------------------------------------------------


class PretrainedTokenizer:
    """The tokenizer of a pretrained model, with id 0 for padding, whatever the model pads with.

    Id i of the model in segment s becomes 1 + i + s * size. The second sentence of a pair is segment 1, if the model has
    segments; otherwise every segment is 0.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoTokenizer

        with _quiet():
            self.tokenizer: Any = _fetched(name, AutoTokenizer.from_pretrained)
        self.size = len(self.tokenizer)
        self.segments = "token_type_ids" in self.tokenizer.model_input_names
        self.vocabulary = 1 + self.size * (2 if self.segments else 1)

    @functools.cached_property
    def identity(self) -> str:
        import transformers

        rules = self.tokenizer.backend_tokenizer.to_str() if self.tokenizer.is_fast else repr(self.tokenizer.get_vocab())
        return f"{transformers.__version__} {hashlib.blake2b(rules.encode(), digest_size=16).hexdigest()}"

    def encode(self, texts: list[str], length: int) -> list[list[int]]:
        if self.tokenizer.sep_token is None:  # the model has no separator for pairs: it reads two lines
            return self._encode(length, [text.replace(PAIR, "\n") for text in texts])
        pairs = [text.partition(PAIR)[::2] for text in texts if PAIR in text]
        alone = [text for text in texts if PAIR not in text]
        rows = {True: self._encode(length, *map(list, zip(*pairs, strict=True))), False: self._encode(length, alone)}
        places = {is_pair: iter(ids) for is_pair, ids in rows.items()}
        return [next(places[PAIR in text]) for text in texts]

    def _encode(self, length: int, *sentences: list[str]) -> list[list[int]]:
        """The ids of single sentences, or of pairs: a list of first and a list of second sentences."""
        if not sentences or not sentences[0]:
            return []
        encoded = self.tokenizer(*sentences, truncation=True, max_length=length, verbose=False)
        if not self.segments:
            return [[1 + i for i in row] or [1] for row in encoded["input_ids"]]
        pairs = zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
        return [[1 + i + s * self.size for i, s in zip(ids, parts, strict=True)] for ids, parts in pairs]


load_tokenizer = functools.cache(PretrainedTokenizer)


# Where models come from -----------------------------------------------------------------------------------------------


def _fetched(name: str, read: Callable[..., Any]) -> Any:
    """What `read` finds in the folder, the local cache or the hub, in this order. If it fails, an error of one line."""
    folder, options = _located(name)
    try:
        try:
            return read(folder, local_files_only=True, **options)
        except OSError:
            if Path(folder).is_dir() or os.environ.get("HF_HUB_OFFLINE", "0").lower() not in ("0", "false", ""):
                raise
            return read(folder, **options)
    except (OSError, ValueError, ImportError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"model: 'hf:{name}' cannot be loaded; give a folder with config.json, tokenizer.json and model.safetensors "
            f"(or a .gguf file), or a name that is in the local cache or can be fetched from the hub: {first}"
        ) from error


def _located(name: str) -> tuple[str, dict[str, str]]:
    """Folder or name, and the .gguf file in the folder if it has no config.json."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(file.name for file in path.glob("*.gguf"))
        if len(files) > 1:
            raise ValueError(f"model: 'hf:{name}' holds several .gguf files; name one of them: {', '.join(files)}")
        return str(path), {"gguf_file": files[0]} if files else {}
    return str(path) if path.is_dir() else name, {}


def need_extra() -> None:
    """Raises ImportError if a package of the extra `text` is missing."""
    for package in ("transformers", "peft"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"model: hf: models need the package {package}; pip install 'fedkeel[text]'")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the progress bars and tables of the library."""
    from transformers.utils import logging as quiet_logging

    logging: Any = quiet_logging  # its functions have no types

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
