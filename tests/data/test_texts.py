"""Texts in arrays, and the vocabulary that is made from the words of a data set."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.data.federation import Dataset
from fedkeel.data.texts import PAIR, Texts
from fedkeel.data.tokens import WORDS, WordTokenizer, tokenised
from fedkeel.models.lstm import lstm

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


def test_texts_are_split_and_trained_like_other_samples(cache):
    """Before, fed[0] raised AttributeError, and so did training."""
    strings = [f"{'good' if i % 2 else 'bad'} film number {i % 5}" for i in range(80)]
    made = data(strings, ["good film", "bad film"])
    made.test = (made.test[0], torch.tensor([1, 0]))
    fed = made.split("iid", clients=4)
    assert len(fed[0].x) == len(fed[0].y) == 20
    assert all(("good" in text) == bool(label) for text, label in zip(fed[0].x, fed[0].y.tolist(), strict=True))
    assert "texts" in repr(fed)
    with pytest.raises(ValueError, match=r"its samples are texts.* fk.model\('lstm', fed\)"):
        fk.train(torch.nn.Linear(2, 2), fed, "fedavg", cohort=4)
    settings = {"rounds": 6, "cohort": 4, "seed": 3, "progress": False}
    method = fk.algorithm("fedavg", lr=1.0)
    run = fk.train(lambda: fk.model("lstm", fed), fed, method, **settings)
    assert run.history[-1]["test_accuracy"] == 1.0
    assert run.model.reads(["good film"]).shape == (1, 2)
    # The same texts as token ids, which was the only way before.
    words = WordTokenizer(fed.x)
    ids = tokenised(fed, words, 128)
    by_hand = fk.train(lambda: lstm(words.vocabulary, 2), ids, method, **settings)
    assert torch.equal(run.params, by_hand.params)
    forked = fk.train(lambda: fk.model("lstm", fed), fed, method, engine="processes", workers=2, **settings)
    assert torch.equal(run.params, forked.params)


def test_lists_of_strings_are_texts(cache):
    fed = fk.Federation.from_arrays([(["a b", "c"], [0, 1]), (["d"], [1])], test=(["a"], [0]))
    assert (list(fed[0].x), fed[1].x[0]) == (["a b", "c"], "d")
    assert (
        fed.fingerprint()
        != fk.Federation.from_arrays([(["a b", "c"], [0, 1]), (["e"], [1])], test=(["a"], [0])).fingerprint()
    )
    with pytest.raises(ValueError, match=r"clients\[1\]: either the samples of all clients are texts"):
        fk.Federation.from_arrays([(["a"], [0]), (torch.zeros(1, 2), [0])])


def test_a_run_on_texts_can_be_opened_and_reads_texts(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    fed = fk.Federation.from_arrays([(["good film", "bad film", "nice"], [1, 0, 1])] * 4)
    run = fk.train(fk.model("lstm", fed, length=5), fed, "fedavg", rounds=1, cohort=2, progress=False)
    opened = fk.open(run.save(tmp_path / "run"))
    assert torch.equal(opened.model(opened.model.reads(["good film"])), run.model(run.model.reads(["good film"])))
