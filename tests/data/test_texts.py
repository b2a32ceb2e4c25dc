"""Texts in arrays, and the vocabulary that is made from the words of a data set."""

import numpy as np
import pytest
import torch

from fedkeel.data.federation import Dataset
from fedkeel.data.texts import PAIR, Texts
from fedkeel.data.tokens import WORDS, WordTokenizer, tokenised

STRINGS = ["The cat, the dog.", "", "naïve 日本", f"Is it?{PAIR}It is.", "the the the cat"]


def test_texts_come_back_as_they_were(tmp_path):
    texts = Texts.from_strings(STRINGS)
    np.save(tmp_path / "data.npy", texts.data)
    np.save(tmp_path / "offsets.npy", texts.offsets)
    mapped = Texts(*(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("data", "offsets")))
    for z in (texts, mapped):
        assert list(z) == STRINGS
        assert z[-1] == STRINGS[-1]
        assert z[1:4] == STRINGS[1:4]
        assert len(z) == 5
    assert mapped.digest == texts.digest != Texts.from_strings(STRINGS[:4]).digest
    assert Texts.from_strings(["ab", "c"]).digest != Texts.from_strings(["a", "bc"]).digest


def test_texts_that_are_cut_short_are_refused():
    texts = Texts.from_strings(STRINGS)
    with pytest.raises(ValueError, match="cut short"):
        Texts(texts.data[:-1], texts.offsets)
    with pytest.raises(ValueError, match="uint8"):
        Texts(texts.data.astype(np.int8), texts.offsets)
    with pytest.raises(IndexError):
        texts[5]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers", reason="needs the extra fedkeel[text]")
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def data(strings=STRINGS, test=("a cat unheard of",)):
    labels = torch.arange(len(strings)) % 2
    return Dataset("mine", Texts.from_strings(strings), labels, (Texts.from_strings(test), torch.zeros(len(test)).long()))


def test_words_are_numbered_by_how_often_they_occur(cache):
    made = data()
    words = WordTokenizer(made.x)
    names = words.tokenizer.get_vocab()
    assert sorted(names.values()) == list(range(words.vocabulary))
    assert (names["[PAD]"], names["[UNK]"], names["[SEP]"], names["the"]) == (0, 1, 2, 3)
    x = tokenised(made, words, 6)
    assert (x.x.dtype, x.x.shape, x.vocabulary) == (torch.int64, (5, 6), words.vocabulary)
    the, cat = names["the"], names["cat"]
    assert x.x[4].tolist() == [the, the, the, cat, 0, 0]
    assert x.x[1].tolist() == [0] * 6
    assert x.x[3].tolist() == [names[z] for z in ("is", "it", "[SEP]", "it", "is", ".")], "a pair is cut at its longer part"
    assert x.test[0][0].tolist() == [1, cat, 1, 1, 0, 0], "words of the test texts make no vocabulary"
    assert tokenised(made, words, 3).x.shape == (5, 3)
    assert tokenised(made, words, 500).x.shape == (5, 7), "no column that is padding in every text"


def test_the_vocabulary_does_not_depend_on_the_cache(cache, monkeypatch):
    rng = np.random.default_rng(0)
    strings = [" ".join(f"w{z}" for z in rng.zipf(1.3, size=30) % 20_000) for _ in range(1000)]
    first = tokenised(data(strings), WordTokenizer(Texts.from_strings(strings)), 20)
    assert first.vocabulary <= WORDS
    monkeypatch.setenv("FEDKEEL_CACHE", str(cache.parent / "other"))
    again = tokenised(data(strings), WordTokenizer(Texts.from_strings(strings)), 20)
    assert torch.equal(first.x, again.x)
    monkeypatch.setattr(WordTokenizer, "_train", lambda self: pytest.fail("trained twice"))
    monkeypatch.setattr(WordTokenizer, "encode", lambda *_: pytest.fail("tokenised twice"))
    kept = tokenised(data(strings), WordTokenizer(Texts.from_strings(strings)), 20)
    assert torch.equal(first.x, kept.x)
    assert kept.vocabulary == first.vocabulary


def test_texts_work_without_a_cache(cache, monkeypatch):
    cache.write_text("a file where the folder should be")
    x = tokenised(data(), WordTokenizer(data().x), 6)
    assert x.x[4, :4].unique().numel() == 2
