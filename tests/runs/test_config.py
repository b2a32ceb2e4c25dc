"""RunConfig, study files, and runs that are read from their directory."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import fedkeel as fk
from fedkeel.engine.state import directory
from fedkeel.engine.state.checkpoint import load_checkpoint, save_checkpoint
from fedkeel.runs import config, from_config
from fedkeel.runs.config import SETTINGS, RunConfig
from fedkeel.runs.saved_config import difference

SMALL = {"clients": 10, "rounds": 3, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}


def test_the_table_of_settings_describes_every_field():
    for name, field in SETTINGS.items():
        assert field.metadata["doc"]
        assert field.metadata["group"]
        RunConfig(**{name: field.metadata["example"]})


def test_defaults():
    plain = RunConfig()
    wanted = ("digits", "dirichlet_per_class", 100, "mlp", "fedavg", 100, 10, 10, 20)
    names = ("data", "split", "clients", "model", "algorithm", "rounds", "cohort", "local_steps", "batch_size")
    assert tuple(getattr(plain, name) for name in names) == wanted
    assert config.resolve(plain).concentration == 0.1


def test_the_help_names_every_split_model_and_engine():
    from fedkeel.data.partition import PARTITIONS
    from fedkeel.engine.settings import ENGINES
    from fedkeel.models import MODELS

    for setting, names in (("split", PARTITIONS), ("engine", ENGINES), ("model", MODELS)):
        for name in names:
            assert re.search(rf"\b{name}\b", SETTINGS[setting].metadata["doc"]), f"{setting} does not name {name}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clinets": 3}, "clinets: unknown setting; did you mean clients"),
        ({"clients": "many"}, "clients = 'many' is not allowed; it must be a whole number >= 1"),
        ({"rounds": 2.5}, "rounds = 2.5 is not allowed; it must be a whole number >= 1"),
        ({"cohort": True}, "cohort = True is not allowed; it must be a count (10) or a fraction (0.1)"),
        ({"batch_size": "some"}, "batch_size = 'some' is not allowed; it must be a whole number >= 1, or 'all'"),
        ({"workers": 0}, "workers = 0 is not allowed; it must be a whole number >= 1"),
        ({"timeout": float("nan")}, "timeout = nan is not allowed; it must be > 0"),
        ({"hyperparameters": {"lr": [1]}}, "hyperparameters.lr = [1] is not allowed"),
        ({"local_steps": 2, "local_epochs": 2}, "local_steps = 2 is not allowed beside local_epochs = 2"),
    ],
)
def test_errors_have_one_line(values, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        RunConfig(**values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm": "fedavgg"}, "algorithm: unknown name 'fedavgg'; did you mean fedavg"),
        ({"hyperparameters": {"lr": -1}}, "fedavg: lr = -1 is not allowed; it must be > 0"),
        ({"hyperparameters": {"rate": 1}}, "fedavg: unknown hyper-parameter 'rate'"),
        ({"algorithm": "gradma", "hyperparameters": {"memory": 12.5}}, "gradma: memory = 12.5 is not allowed"),
        ({"cohort": 101}, "cohort = 101 is not allowed; it must be from 1 to the number of clients, 100"),
        ({"engine": "fast"}, "engine: unknown name 'fast'"),
        ({"split": "shard"}, "split: unknown name 'shard'; did you mean shards"),
        ({"split": "iid", "concentration": 0.1}, "split 'iid': unknown option 'concentration'"),
        ({"concentration": 0.0}, "concentration = 0.0 is not allowed; it must be > 0"),
        ({"model": "mpl"}, "model: unknown name 'mpl'"),
        ({"data": "digit"}, "data: unknown name 'digit'; did you mean digits"),
    ],
)
def test_an_impossible_config_is_refused_before_anything_is_written(values, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_config.train(RunConfig(**values), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_new_value_removes_settings_that_it_makes_meaningless():
    old = RunConfig(split="shards", per_client=3, algorithm="fedlada", hyperparameters={"alpha": 0.2}, local_epochs=2)
    assert old.changed(split="iid").per_client is None
    assert old.changed(split="shards").per_client == 3
    assert old.changed(algorithm="fedavg").hyperparameters == {}
    assert old.changed(algorithm="fedlada").hyperparameters == {"alpha": 0.2}
    assert (old.changed(local_steps=5).local_epochs, old.changed(local_epochs=1).local_steps) == (None, None)
    dirichlet = RunConfig(concentration=0.5)
    assert dirichlet.changed(split="dirichlet_per_client").concentration == 0.5
    assert dirichlet.changed(split="dirichlet_per_class").concentration == 0.5


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"algorithm": "padamfed", "batch_size": "all"},  # None: values from theory, which TOML cannot spell
        {"algorithm": "fadamet", "hyperparameters": {"tracking": 0.5, "persist_vhat": True}, "cohort": 0.5},
        {"split": "shards", "local_epochs": 1, "local_steps": None, "clip": 1.0, "weights": "samples"},
    ],
)
def test_the_config_of_a_run_gives_the_same_bits_again(values, tmp_path):
    first = from_config.train(RunConfig(**SMALL | values), tmp_path / "a", progress=False)
    again = from_config.train(config.read(tmp_path / "a" / "config.toml"), tmp_path / "b", progress=False)
    assert torch.equal(first.params, again.params)
    assert (tmp_path / "a" / "config.toml").read_text() == (tmp_path / "b" / "config.toml").read_text()


def test_the_seed_does_not_change_the_split():
    one, other = (from_config.federation(config.resolve(RunConfig(seed=seed))) for seed in (0, 1))
    assert one.fingerprint() == other.fingerprint()
    assert from_config.federation(config.resolve(RunConfig(split_seed=1))).fingerprint() != one.fingerprint()


def test_a_resumed_run_ends_where_an_unbroken_run_ends(tmp_path):
    from_config.train(RunConfig(**SMALL), tmp_path / "a", progress=False)
    longer = fk.resume(tmp_path / "a", progress=False, rounds=5)
    unbroken = from_config.train(RunConfig(**SMALL | {"rounds": 5}), progress=False)
    assert torch.equal(longer.params, unbroken.params)
    assert len(longer.history) == 5
    assert tomllib.loads((tmp_path / "a" / "config.toml").read_text())["rounds"] == 5
    with pytest.raises(ValueError, match=r"resume: lr is 0\.5 now, but 0\.1 in the checkpoint"):
        fk.resume(tmp_path / "a", progress=False, hyperparameters={"lr": 0.5})


def test_resume_without_a_run_and_of_python_objects(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        fk.resume(tmp_path / "nothing")
    fed = fk.Federation.from_arrays([(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))] * 2)
    fk.train(torch.nn.Linear(2, 2), fed, "fedavg", rounds=1, cohort=1, out=tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match=r"cannot be run from its file.*train\(\.\.\., out=, resume=True\)"):
        fk.resume(tmp_path / "run")
    assert "Python objects" in difference(tmp_path / "run", config.resolve(RunConfig()))


def test_broken_study_files(tmp_path):
    with pytest.raises(ValueError, match="study: cannot read"):
        config.read(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("rounds = \n")
    with pytest.raises(ValueError, match=r"bad\.toml is not a TOML file: Invalid value \(at line 1"):
        config.read(tmp_path / "bad.toml")


def test_files_are_utf8_whatever_the_locale(tmp_path):
    (tmp_path / "study.toml").write_text('title = "90.5±0.1"\n', encoding="utf-8")
    code = "import sys; from fedkeel.files import read_toml; print(ascii(read_toml(sys.argv[1])))"
    old = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-c", code, str(tmp_path / "study.toml")]
    printed = subprocess.run(words, env=old, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == ascii({"title": "90.5±0.1"})


def test_the_directory_says_what_differs(tmp_path):
    plain = config.resolve(RunConfig(**SMALL))
    from_config.train(plain, tmp_path, progress=False)
    assert difference(tmp_path, plain) is None
    assert difference(tmp_path, plain.changed(engine="processes", workers=2)) is None
    for change, words in [
        ({"rounds": 9}, "rounds = 3, this one has 9"),
        ({"hyperparameters": {"lr": 0.2, "server_lr": 1.0}}, "lr = 0.1, this one has 0.2"),
        ({"clip": 1.0}, "clip = none, this one has 1.0"),
    ]:
        assert words in difference(tmp_path, plain.changed(**change))


def test_a_hyperparameter_that_was_added_later_has_its_default(tmp_path):
    """Old runs, complete or not, stay usable when a method gets another option."""
    lamb = config.resolve(RunConfig(**SMALL | {"algorithm": "fed-lamb", "hyperparameters": {}}))
    from_config.train(lamb, tmp_path, progress=False)
    path, name = tmp_path / "config.toml", "first_round"
    *lines, _ = path.read_text().splitlines(True)  # without the checksum at the end
    path.write_text("".join(line for line in lines if not line.startswith(name)))
    assert name not in path.read_text()
    assert difference(tmp_path, lamb) is None
    other = lamb.changed(hyperparameters=lamb.hyperparameters | {name: "local_v"})
    assert f"{name} = 'frozen', this one has 'local_v'" in difference(tmp_path, other)
    checkpoint = tmp_path / "checkpoint.safetensors"
    old = load_checkpoint(checkpoint)
    assert old.facts["identity"]["algorithm"].pop(name) == "frozen"

    def write_old() -> None:
        nothing = NamedTuple("Nothing", [])()  # `tensors` has the server record already
        save_checkpoint(checkpoint, tmp_path / "previous", old.t, nothing, old.tensors, old.facts, {})

    write_old()
    longer = from_config.train(lamb.changed(rounds=4), tmp_path, resume=True, progress=False)
    assert len(longer.history) == 4
    write_old()
    with pytest.raises(ValueError, match="first_round is 'local_v' now, but 'frozen' in the checkpoint"):
        from_config.train(other.changed(rounds=4), tmp_path, resume=True, progress=False)


def test_replacing_a_run_keeps_other_files(tmp_path):
    from_config.train(RunConfig(**SMALL), tmp_path, progress=False)
    (tmp_path / "notes.txt").write_text("mine")
    new = from_config.train(RunConfig(**SMALL | {"seed": 1}), tmp_path, progress=False, fresh=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert [row["round"] for row in directory.history(tmp_path)] == [0, 1, 2]
    assert directory.summary(tmp_path, 3)["final_accuracy"] == new.summary()["final_accuracy"]
    assert directory.summary(Path(tmp_path), 4) is None
