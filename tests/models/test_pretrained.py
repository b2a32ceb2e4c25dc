"""Pretrained transformers with LoRA. Tests make tiny models. stories260k is a real model; without its file it is skipped."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel.cli import app as cli
from fedkeel.data import load as sources
from fedkeel.data.federation import Dataset
from fedkeel.data.texts import PAIR, Texts
from fedkeel.files import read_toml
from fedkeel.models import length_buckets
from fedkeel.runs import from_config
from fedkeel.runs.config import RunConfig

REASON = "needs the extra fedkeel[text]"
transformers = pytest.importorskip("transformers", reason=REASON)
pytest.importorskip("peft", reason=REASON)

from fedkeel.models.pretrained import backbone, classifier  # noqa: E402
from fedkeel.models.pretrained import hidden_states as hidden  # noqa: E402

KINDS = ["bert", "gpt2", "llama"]
WORDS = ["good", "bad", "film", "cat", "dog", "nice", "dull", "long", "short", "the", "a", "was", "is", "very", "not", "it"]
SHARED = Path(os.environ.get("FEDKEEL_DATA") or Path(__file__).parents[3] / "shared" / "data")
STORIES = SHARED / "stories260k" / "hf"


def tiny(kind: str) -> Any:
    """A configuration with three blocks of width 16."""
    size = {"vocab_size": len(WORDS) + 4, "pad_token_id": 0}
    if kind == "gpt2":
        return transformers.GPT2Config(n_layer=3, n_embd=16, n_head=2, n_positions=40, eos_token_id=0, **size)
    wide = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    wide |= {"max_position_embeddings": 40} | size
    if kind == "bert":
        return transformers.BertConfig(**wide)
    return transformers.LlamaConfig(num_key_value_heads=1, bos_token_id=1, eos_token_id=0, **wide)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, str]:
    """A folder with a language model of random weights and its tokenizer, for every kind."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
        rules = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        rules.pre_tokenizer = pre_tokenizers.Whitespace()
        special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
        if kind == "bert":
            rules.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
            special |= {"sep_token": "[SEP]", "cls_token": "[CLS]"}
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if kind == "bert" else [])]
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=rules, model_input_names=names, **special)
        fast.save_pretrained(folder)
        torch.manual_seed(0)
        config = tiny(kind)
        config.initializer_range = 0.5  # so that every token matters
        auto = transformers.AutoModel if kind == "bert" else transformers.AutoModelForCausalLM
        auto.from_config(config).save_pretrained(folder)
        made[kind] = str(folder)
    return made


def strings(n: int = 60) -> tuple[list[str], torch.Tensor]:
    """Sentences of different length, some of them pairs. Those with `good` have class 1."""
    y = torch.arange(n) % 2
    generator = torch.Generator().manual_seed(1)
    texts = []
    for label in y.tolist():
        words = [WORDS[2 + int(z)] for z in torch.randint(len(WORDS) - 2, (int(label) + 3,), generator=generator)]
        words += ["the"] * int(torch.randint(4, (1,), generator=generator))
        texts.append(" ".join(["good" if label else "bad", *words]))
    texts[3] += f"{PAIR}it was very nice"
    return texts, y


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch) -> Dataset:
    """A text data set named `tiny`, and a separate cache."""
    texts, y = strings()
    made = Dataset("tiny", Texts.from_strings(texts), y, (Texts.from_strings(texts[:10]), y[:10]))
    known = sources.load_any
    monkeypatch.setattr(sources, "load_any", lambda name, *rest: made if name == "tiny" else known(name, *rest))
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return made


def config(model: str, **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {"data": "tiny", "split": "iid", "clients": 4, "cohort": 2, "rounds": 2, "local_steps": 2}
    settings |= {
        "batch_size": 6,
        "algorithm": "fedit-adamgt",
        "model": f"hf:{model}",
        "engine": "sequential",
        "lora_rank": 2,
    }
    return RunConfig(**settings | changes)


def train(model: str, **changes: Any) -> fk.Run:
    return from_config.train(config(model, **changes), progress=False)


# What is trained ------------------------------------------------------------------------------------------------------


def test_adapters_of_gpt2_have_as_many_parameters_as_in_the_paper() -> None:
    with torch.device("meta"):
        model = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(num_labels=2, pad_token_id=50256))
        everything = sum(p.numel() for p in model.transformer.parameters())
        made = backbone.as_backbone(model, {"score.weight"})
        classifier.adapt(made.model, classifier.Lora())
    trained = sum(p.numel() for p in made.model.parameters() if p.requires_grad)
    assert trained == 2_359_296
    assert round(100 * trained / everything, 1) == 1.9


@pytest.mark.filterwarnings("ignore")  # of peft, about its own future
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [None, 1])
def test_peft_loads_the_adapters_of_a_run_and_computes_the_same(folders, kind: str, layers: int | None, tmp_path) -> None:
    import peft

    run = train(folders[kind], rounds=4, validation=0.2, lora_layers=layers)
    for which, model in (("final", run.model), ("best", run.best)):
        folder = run.export(tmp_path / which, which=which)
        base = transformers.AutoModelForSequenceClassification.from_pretrained(folders[kind], num_labels=2, pad_token_id=0)
        theirs = peft.PeftModel.from_pretrained(base, str(folder)).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        reading = backbone.load_tokenizer(folders[kind])
        for text in strings()[0][:3]:
            ids = torch.tensor(reading.encode([text], 40))
            with torch.no_grad():
                expected = theirs(**tokenizer(text, return_tensors="pt")).logits
            # transformers applies the head of GPT-2 to all tokens and then takes one, which may round differently.
            torch.testing.assert_close(model(ids).detach(), expected, rtol=1e-6, atol=1e-6)
    assert float(sum(z.abs().sum() for name, z in run.model.state_dict().items() if "lora_B" in name)) > 0
    assert "PeftModel" in (folder / "README.md").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_transformers_computes(folders: dict[str, str], kind: str) -> None:
    """With adapters of zero it is the pretrained classifier, for texts of different lengths with the same padding."""
    make, fed = from_config.task(config(folders[kind]))
    torch.manual_seed(5)
    model = make().eval()
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folders[kind], num_labels=2).eval()
    head = theirs.classifier if kind == "bert" else theirs.score
    head.load_state_dict(model[1].state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[kind])
    texts = strings()[0]
    firsts, seconds = zip(*(text.partition(PAIR)[::2] for text in texts), strict=True)
    for i in range(8):
        if kind == "bert":
            given = tokenizer(firsts[i], seconds[i] or None, return_tensors="pt")
        else:
            given = tokenizer(texts[i].replace(PAIR, "\n"), return_tensors="pt")
        with torch.no_grad():
            torch.testing.assert_close(model(fed.x[:8])[i], theirs(**given).logits[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_only_adapters_and_head_are_trained_and_sent(folders: dict[str, str], kind: str) -> None:
    run = train(folders[kind], algorithm="fedit-adam")
    trained = {name for name, p in run.model.named_parameters() if p.requires_grad}
    count = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    assert all("lora_" in name or name.startswith("1.") for name in trained)
    assert set(run.model.state_dict()) == trained
    assert [row["up"] for row in run.history] == [row["down"] for row in run.history] == [count] * 2 == [len(run.params)] * 2
    files = transformers.AutoModelForSequenceClassification.from_pretrained(folders[kind]).state_dict()
    frozen = {name.removeprefix("0.model.").replace(".base_layer", ""): p for name, p in run.model.named_parameters()}
    same = [torch.equal(p, files[name]) for name, p in frozen.items() if name in files]
    assert len(same) > 10
    assert all(same)
    start = from_config.task(config(folders[kind]))[0]()
    moved = [p.count_nonzero() > 0 for name, p in run.model.named_parameters() if "lora_B" in name]
    assert all(moved)
    assert not any(p.count_nonzero() for name, p in start.named_parameters() if "lora_B" in name)


def test_it_learns(folders: dict[str, str]) -> None:
    run = train(folders["gpt2"], rounds=6, lora_alpha=2, hyperparameters={"lr": 0.01, "server_lr": 1.0}, local_steps=5)
    assert run.history[-1]["test_loss"] < 0.3 * run.history[0]["test_loss"]
    assert run.history[-1]["test_accuracy"] == 1


def test_the_head_depends_on_the_seed_alone(folders: dict[str, str]) -> None:
    one, again, other = (train(folders["gpt2"], rounds=1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.params, again.params)
    assert not torch.equal(one.params, other.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", fk.algorithms())
def test_every_method_trains_it(folders: dict[str, str], name: str) -> None:
    run = train(folders["bert"], algorithm=name, rounds=1, cohort=4, lora_layers=1)
    assert torch.isfinite(run.params).all()
    assert run.history[0]["dropped"] == 0


@pytest.mark.parametrize("layers", [None, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_short_texts_apart_from_long_ones(
    folders: dict[str, str], kind: str, layers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets of similar length train the same model up to rounding, with the same bits in every engine."""
    together = train(folders[kind], lora_layers=layers)
    monkeypatch.setattr(length_buckets, "PASS", 0)  # as many buckets as there are lengths
    apart = train(folders[kind], lora_layers=layers)
    torch.testing.assert_close(apart.params, together.params, rtol=1e-3, atol=1e-4)
    assert not torch.equal(apart.params, together.params)
    assert torch.equal(train(folders[kind], lora_layers=layers, engine="processes", workers=2).params, apart.params)


# The frozen part is loaded once and computed once ---------------------------------------------------------------------


def test_workers_share_the_backbone(folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, auto = tmp_path / "loads", transformers.AutoModelForSequenceClassification
    load = auto.from_pretrained

    def counted(*args: Any, **kwargs: Any) -> Any:
        with open(log, "a") as file:
            file.write("x")
        return load(*args, **kwargs)

    monkeypatch.setattr(auto, "from_pretrained", counted)
    backbone.load_backbone.cache_clear()
    split = train(folders["llama"], engine="processes", workers=2, cohort=4)
    alone = train(folders["llama"], cohort=4)
    assert log.read_text() == "x"
    assert torch.equal(split.params, alone.params)
    kept = backbone.load_backbone(folders["llama"], 2).model
    weights = {p.data_ptr() for p in kept.parameters() if not p.requires_grad}
    for run in (split, alone):
        assert {p.data_ptr() for p in run.model.parameters() if not p.requires_grad} == weights, "copies share memory"


@pytest.mark.parametrize("kind", KINDS)
def test_known_hidden_states_change_nothing(folders: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"lora_layers": 1, "rounds": 3, "hyperparameters": {"lr": 0.02, "server_lr": 1.0}}
    fast = train(folders[kind], **changes)
    seen = []
    monkeypatch.setattr(hidden.HiddenStates, "of", lambda self, x, compute: seen.append(len(x)))
    slow = train(folders[kind], **changes)
    assert seen
    torch.testing.assert_close(fast.params, slow.params, rtol=1e-3, atol=1e-4)
    assert (fast.params - train(folders[kind], **(changes | {"rounds": 1})).params).abs().max() > 1e-2


def test_blocks_before_the_first_adapter_are_run_once_per_text(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    layer = transformers.models.bert.modeling_bert.BertLayer
    forward = layer.forward

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("adapted" if any("lora_" in name for name, _ in self.named_parameters()) else "frozen")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(layer, "forward", counted)
    make, fed = from_config.task(config(folders["bert"], lora_layers=1))
    for engine in ("processes", "sequential"):  # all workers see what one has computed
        calls.clear()
        fk.train(make, fed, "fedavg", rounds=2, cohort=4, engine=engine, progress=False)
    assert set(calls) == {"adapted"}
    make, fed = from_config.task(config(folders["bert"], lora_layers=1))
    with torch.no_grad():
        make()(fed.x)
        assert set(calls) == {"adapted"}
        unknown = fed.x[:1, :3] + 1  # a text without a place in the cache is computed in full
        make()(unknown)
    assert calls.count("frozen") == 2


def test_only_states_of_real_tokens_are_kept(folders: dict[str, str], tmp_path: Path) -> None:
    make, fed = from_config.task(config(folders["bert"], lora_layers=2))
    (folder,) = (tmp_path / "cache").glob("hidden-*")
    states = hidden.HiddenStates(folder)
    assert states.states.shape == (int((fed.x.unique(dim=0) > 0).sum()), 16)
    assert not states.sums.any()
    with torch.no_grad():
        make()(fed.x)
    found = states.of(fed.x[:5], lambda text: pytest.fail("computed twice"))
    assert found is not None
    assert torch.equal(found.abs().sum(-1) > 0, fed.x[:5] > 0)
    torch.testing.assert_close(found, make()[0].before(fed.x[:5]) * (fed.x[:5] > 0).unsqueeze(-1), rtol=1e-4, atol=1e-5)
    assert states.of(fed.x[:5] + 1, make()[0].before) is None


def test_partly_written_states_are_computed_again(folders: dict[str, str], tmp_path: Path) -> None:
    make, fed = from_config.task(config(folders["bert"], lora_layers=2))
    states, model = make()[0].hidden, make()
    with torch.no_grad():
        good = model(fed.x)
        kept = states.states.copy()
        states.states[1::7] = 0
        assert torch.equal(model(fed.x), good)
    assert (states.states == kept).all()


def test_a_resumed_run_has_the_same_bits(folders: dict[str, str], tmp_path: Path) -> None:
    whole = train(folders["gpt2"], rounds=4, lora_layers=2)
    from_config.train(config(folders["gpt2"], rounds=2, lora_layers=2), tmp_path / "run", progress=False)
    more = fk.resume(tmp_path / "run", rounds=4, progress=False)
    assert torch.equal(whole.params, more.params)
    for i in range(4):
        pair = whole.clients[i], more.clients[i]
        assert (pair[0] is None) == (pair[1] is None)
        assert all(torch.equal(a, b) for a, b in zip(*(z or () for z in pair), strict=True))
    size = (tmp_path / "run" / "model.safetensors").stat().st_size
    assert size < 4 * len(whole.params) + 5000, "the run keeps what was trained, not the backbone"


# The command line and errors ------------------------------------------------------------------------------------------


def fedkeel(*words: str) -> Any:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return end.value.code


SMALL = ["run", "--data", "tiny", "--split", "iid", "--clients", "4", "--cohort", "2", "--rounds", "1"]
SMALL += ["--local-steps", "1", "--engine", "sequential"]


def test_a_folder_on_the_command_line(folders: dict[str, str], tmp_path: Path, capsys: Any) -> None:
    words = [
        "--model",
        f"hf:{folders['gpt2']}",
        "--algorithm",
        "fedit-adamgt",
        "--lora-layers",
        "1",
        "--out",
        str(tmp_path / "r"),
    ]
    assert fedkeel(*SMALL, *words) == 0
    kept = read_toml(tmp_path / "r" / "config.toml")
    assert (kept["lora_rank"], kept["lora_targets"], kept["lora_layers"], kept["length"]) == (16, "auto", 1, 128)
    assert fedkeel(*SMALL, *words) == 0
    assert "holds this run already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "hf:/nowhere/at/all"], "cannot be loaded; give a folder with config.json"),
        (["--model", "hf:nobody/no-such-model"], "cannot be loaded"),
        (["--lora-rank", "8", "--model", "mlp"], "lora_rank = 8 is not allowed with model 'mlp'"),
        (["--model", "hf:BERT", "--lora-rank", "0"], "lora_rank = 0 is not allowed"),
        (["--model", "hf:BERT", "--lora-layers", "4"], "must be from 1 to the number of blocks, 3"),
        (["--model", "hf:BERT", "--lora-targets", "keys"], "BertForSequenceClassification has dense, key, query, value"),
        (["--model", "hf:BERT", "--length", "41", "--data", "long"], "it must be at most 40"),
        (["--model", "hf:BERT", "--data", "numbers"], "reads texts, but the data 'numbers' are not texts"),
        (["--model", "hf:BERT", "--engine", "vectorized"], "skips the padding"),
    ],
)
def test_errors_are_one_line(
    folders: dict[str, str], words: list[str], message: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = torch.tensor([1, 0] * 4)
    others = {"long": Dataset("long", Texts.from_strings(["good " * 90, "bad"] * 4), y), "numbers": Dataset("numbers", y, y)}
    known = sources.load_any
    monkeypatch.setattr(sources, "load_any", lambda name, *rest: others.get(name) or known(name, *rest))
    words = [word.replace("BERT", folders["bert"]) for word in words]
    assert fedkeel(*SMALL, "--out", str(tmp_path / "r"), *words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1]
    assert sum(line.startswith("error: ") for line in lines) == 1


def test_a_missing_package_is_one_line(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(backbone, "importlib", nothing)
    with pytest.raises(ImportError, match=r"need the package transformers; pip install 'fedkeel\[text\]'$"):
        backbone.need_extra()
    assert fedkeel(*SMALL, "--model", "hf:x", "--out", str(tmp_path / "r")) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("error: model: hf: models need the package")


def test_gguf_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert backbone._located(str(tmp_path)) == (str(tmp_path), {"gguf_file": "a.gguf"})
    assert backbone._located(str(tmp_path / "a.gguf")) == (str(tmp_path), {"gguf_file": "a.gguf"})
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ValueError, match=r"several .gguf files; name one of them: a.gguf, b.gguf"):
        backbone._located(str(tmp_path))


# A real model ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not STORIES.exists(), reason=f"there is no {STORIES}")
def test_stories260k_trains() -> None:
    changes = {"lora_rank": 4, "hyperparameters": {"lr": 0.01, "server_lr": 1.0}, "rounds": 2}
    run = train(str(STORIES), lora_layers=2, **changes)
    assert len(run.params) == 2 * 4 * (64 + 64 + 64 + 32) + 2 * 64
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]
    known = from_config.task(config(str(STORIES), lora_layers=2))[0]().eval()
    x = from_config.task(config(str(STORIES)))[1].x[:20]
    fast = known(x)
    known[0].hidden = None
    torch.testing.assert_close(fast, known(x), rtol=1e-4, atol=1e-5)
