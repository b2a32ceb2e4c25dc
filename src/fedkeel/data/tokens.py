"""From texts to the token ids that models read."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.cache import cached_array
from fedkeel.data.texts import PAIR, Texts

WORDS = 10_000  # size of the vocabulary that is made from the texts of a data set
CHUNK = 4096  # texts that are tokenised at once

MANY = 5000  # texts; tokenising more takes so long that it is announced
log = logging.getLogger("fedkeel")

D = TypeVar("D")  # a Dataset or a Federation


class Tokenizer(Protocol):
    """Turns texts into token ids >= 1; 0 is padding."""

    identity: str  # two tokenizers that give different ids have different identities
    vocabulary: int  # all ids are smaller

    def encode(self, texts: list[str], length: int) -> list[list[int]]:
        """The ids of every text, at most `length` of them."""


def tokenised(data: D, tokenizer: Tokenizer, length: int) -> D:
    """The data set or federation with token ids instead of texts: int64 [n, L].

    L is the number of tokens of the longest text, but at most `length`. The cache holds the ids, so the same texts are
    tokenised only once.
    """
    source: Any = data
    parts: list[Texts] = [source.x, *([] if source.test is None else [source.test[0]])]
    if not all(isinstance(part, Texts) for part in parts):
        raise ValueError("data: only texts can be tokenised, and these data are not texts")
    name = hashlib.blake2b(
        "\n".join([tokenizer.identity, str(length), *(part.digest for part in parts)]).encode(), digest_size=16
    ).hexdigest()
    ids = cached_array(f"tokens-{name}.npy", lambda: _ids(parts, tokenizer, length))
    x, *rest = torch.from_numpy(ids).split([len(part) for part in parts])
    test = (rest[0], source.test[1]) if rest else None
    return dataclasses.replace(source, x=x, test=test, vocabulary=tokenizer.vocabulary)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Reading:
    """How a model reads texts. The model has it as its attribute `reads`."""

    tokenizer: Tokenizer
    length: int  # tokens of a text; longer texts are cut off

    def __call__(self, texts: Iterable[str]) -> Tensor:
        """The token ids of texts, [n, L], as the model takes them."""
        return torch.from_numpy(_ids([Texts.from_strings(texts)], self.tokenizer, self.length))

    def __deepcopy__(self, memo: Any) -> Reading:
        return self  # copies of the model share the tokenizer, which never changes


def as_model_reads(model: Any, fed: D) -> D:
    """The federation with token ids instead of texts, as the model reads them."""
    reads = getattr(model, "reads", None)
    if not isinstance(reads, Reading):
        raise ValueError(
            "fed: its samples are texts, and the model does not say how to read them; use fk.model('lstm', fed), "
            "fk.lora('NAME', fed), or a federation of token ids"
        )
    return tokenised(fed, reads.tokenizer, reads.length)


def _ids(parts: list[Texts], tokenizer: Tokenizer, length: int) -> np.ndarray:
    """The ids of all parts one after the other, padded with 0."""
    count = sum(map(len, parts))
    if count > MANY:
        log.warning("tokenising %s texts; the cache keeps the result", f"{count:,}")
    rows = np.zeros((count, length), dtype=np.int64)
    at, longest = 0, 1
    for part in parts:
        for start in range(0, len(part), CHUNK):
            for row in tokenizer.encode(part[start : start + CHUNK], length):
                rows[at, : len(row)] = row
                at, longest = at + 1, max(longest, len(row))
    return np.ascontiguousarray(rows[:, :longest])


class WordTokenizer:
    """Splits texts into words and punctuation, in lower case: for models without a pretrained vocabulary.

    The vocabulary is made from the given texts. Frequent words have small ids; the rarest words share the id of unknown
    words.
    """

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.identity = f"words {WORDS} {texts.digest}"

    @functools.cached_property
    def tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ImportError("data: texts need the package tokenizers; pip install 'fedkeel[text]'") from None
        name = hashlib.blake2b(self.identity.encode(), digest_size=16).hexdigest()
        made = cached_array(f"words-{name}.npy", lambda: np.frombuffer(self._train().to_str().encode(), dtype=np.uint8))
        return Tokenizer.from_str(made.tobytes().decode())

    def _train(self) -> Any:
        if len(self.texts) > MANY:
            log.warning("collecting the words of %s texts; the cache keeps them", f"{len(self.texts):,}")
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

        made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        special = ["[PAD]", "[UNK]", "[SEP]"]
        trainer = trainers.WordLevelTrainer(vocab_size=WORDS, special_tokens=special, show_progress=False)
        made.train_from_iterator((text.replace(PAIR, " ") for text in self.texts), trainer)
        made.post_processor = processors.TemplateProcessing(
            single="$A", pair="$A [SEP] $B", special_tokens=[("[SEP]", special.index("[SEP]"))]
        )
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"identity": self.identity, "rules": self.tokenizer.to_str()}  # without the texts, which may be many

    def __setstate__(self, state: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.identity, self.tokenizer = state["identity"], Tokenizer.from_str(state["rules"])

    @property
    def vocabulary(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def encode(self, texts: list[str], length: int) -> list[list[int]]:
        self.tokenizer.enable_truncation(length)
        pairs = [tuple(text.split(PAIR, 1)) if PAIR in text else text for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch(pairs)]
