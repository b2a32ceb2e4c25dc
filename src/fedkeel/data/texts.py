"""Texts on disk, and the token ids that models read. A pair of sentences is one text with `PAIR` between the two."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, overload

import numpy as np

from fedkeel.data.cache import folder

PAIR = "\x1e"  # the record separator, which no sentence contains
WORDS = 10_000  # size of the vocabulary that is made from a data set's own texts
CHUNK = 4096  # texts that are tokenised at once

D = TypeVar("D")  # a Dataset or a Federation


class Texts(Sequence[str]):
    """A read-only sequence of strings in two arrays, which may be memory-mapped: opening a million texts costs nothing."""

    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        if data.dtype != np.uint8 or offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) < 1:
            raise ValueError(f"texts: expected uint8 bytes and int64 offsets, not {data.dtype} and {offsets.dtype}")
        if offsets[0] != 0 or offsets[-1] != len(data):
            raise ValueError(f"texts: the offsets end at {offsets[-1]}, the bytes at {len(data)}; a file is cut short")
        self.data = data  # [bytes] uint8, all texts in utf-8, one after the other
        self.offsets = offsets  # [n + 1] int64, text i is data[offsets[i] : offsets[i + 1]]

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> Texts:
        coded = [string.encode() for string in strings]
        offsets = np.cumsum([0, *map(len, coded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(coded), dtype=np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"texts: no number {i} among {len(self)}")
        i %= len(self)
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes().decode()

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all texts: the name under which what is made of them is kept."""
        digest = hashlib.blake2b(self.offsets.tobytes(), digest_size=16)
        digest.update(np.ascontiguousarray(self.data).data)
        return digest.hexdigest()


class Tokenizer(Protocol):
    """What turns texts into token ids >= 1; 0 is padding."""

    identity: str  # changes whenever its ids do
    vocabulary: int  # ids are below it

    def encode(self, texts: list[str], length: int) -> list[list[int]]:
        """The ids of every text, at most `length` of them."""


def tokenised(data: D, tokenizer: Tokenizer, length: int) -> D:
    """The data set or federation with token ids instead of texts: int64 [n, L], L the longest text, but at most `length`.

    Ids are kept on disk and mapped into memory, so that the same texts are tokenised once.
    """
    source: Any = data
    parts: list[Texts] = [source.x, *([] if source.test is None else [source.test[0]])]
    if not all(isinstance(part, Texts) for part in parts):
        raise ValueError("data: they hold no texts that could be tokenised")
    name = hashlib.blake2b(
        "\n".join([tokenizer.identity, str(length), *(part.digest for part in parts)]).encode(), digest_size=16
    ).hexdigest()
    ids = kept(f"tokens-{name}.npy", lambda: _ids(parts, tokenizer, length))
    import torch

    x, *rest = torch.from_numpy(ids).split([len(part) for part in parts])
    test = (rest[0], source.test[1]) if rest else None
    return dataclasses.replace(source, x=x, test=test, vocabulary=tokenizer.vocabulary)  # type: ignore[no-any-return]


def _ids(parts: list[Texts], tokenizer: Tokenizer, length: int) -> np.ndarray:
    """The ids of all parts one after the other, padded with 0."""
    rows = np.zeros((sum(map(len, parts)), length), dtype=np.int64)
    at, longest = 0, 1
    for part in parts:
        for start in range(0, len(part), CHUNK):
            for row in tokenizer.encode(part[start : start + CHUNK], length):
                rows[at, : len(row)] = row
                at, longest = at + 1, max(longest, len(row))
    return np.ascontiguousarray(rows[:, :longest])


class Words:
    """Words and punctuation in lower case, numbered by how often they occur in the given texts: for models without a
    pretrained vocabulary. The rarest words share the id of the unknown."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.identity = f"words {WORDS} {texts.digest}"

    @functools.cached_property
    def tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ValueError("data: texts need the package tokenizers; pip install 'fedkeel[text]'") from None
        name = hashlib.blake2b(self.identity.encode(), digest_size=16).hexdigest()
        made = kept(f"words-{name}.npy", lambda: np.frombuffer(self._train().to_str().encode(), dtype=np.uint8))
        return Tokenizer.from_str(made.tobytes().decode())

    def _train(self) -> Any:
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

    @property
    def vocabulary(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def encode(self, texts: list[str], length: int) -> list[list[int]]:
        self.tokenizer.enable_truncation(length)
        pairs = [tuple(text.split(PAIR, 1)) if PAIR in text else text for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch(pairs)]


# What was made once ---------------------------------------------------------------------------------------------------


def kept(name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array of that name, memory-mapped; made if it is not there, and only in memory where nothing can be written."""
    path = folder() / name
    if not path.exists():
        made = make()
        part = path.with_name(f"{os.getpid()}-{name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(part, made)
            os.replace(part, path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            return made
    return np.load(path, mmap_mode="c")  # copy-on-write, for torch warns of arrays that are read-only
