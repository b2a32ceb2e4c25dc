"""The command line as a user meets it: what is printed, the exit code, and what lies on disk afterwards."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest
import typer.main

import fedkeel as fk
from fedkeel.cli import app as cli
from fedkeel.cli.options import NAMES
from fedkeel.cli.studies import SHARED
from fedkeel.core.algorithm import PROBLEMS
from fedkeel.runs import config

SMALL = ["--clients", "10", "--rounds", "3", "--cohort", "3", "--local-steps", "2", "--model", "logistic"]
SMALL += ["--engine", "sequential"]
OUT = "runs/digits-fedavg-seed0"


def error_of(result, code=2):
    """The one line of a failed command."""
    assert result[0] == code
    assert "Traceback" not in result[2]
    lines = [line for line in result[2].splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert result[2].splitlines()[-1] == lines[0]
    return lines[0]


# Help -----------------------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from fedkeel.cli.app import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print([m for m in ('torch', 'numpy', 'scipy', 'sklearn', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("run", "resume", "compare", "algorithms", "datasets"):
        assert re.search(rf"^\W+{command} ", done.stdout, re.MULTILINE)


def test_every_option_has_help_with_an_example():
    group = typer.main.get_command(cli.app)
    commands = [group.commands[name] for name in ("run", "resume", "compare", "sweep", "reproduce", "report", "algorithms")]
    commands.append(group.commands["datasets"].commands["show"])
    for command in commands:
        for param in command.params:
            assert re.search(r"e\.g\.", param.help, re.IGNORECASE), f"{command.name}: {param.name}"


def test_no_hyperparameter_has_the_name_of_an_option():
    for name in fk.algorithms():
        fields = {field.name for field in dataclasses.fields(fk.algorithm(name))}
        assert not fields & {
            *NAMES,
            "out",
            "fresh",
            "study",
            "debug",
            "help",
            "set",
            "target",
            "seeds",
            "algorithms",
            "over",
            *SHARED,
        }


def test_names_of_methods_can_be_listed_twice():  # the package fedkeel.algorithms must not hide the function
    assert fk.algorithms() == fk.algorithms()
    assert "fedavg" in fk.algorithms()


def test_version_and_bare_command(fedkeel):
    assert fedkeel("--version") == (0, f"fedkeel {fk.__version__}\n", "")
    code, out, err = fedkeel()
    assert code == 0
    assert "Commands" in out
    assert err == ""


# Runs -----------------------------------------------------------------------------------------------------------------


def test_a_run_and_the_same_command_again(fedkeel, tmp_path):
    code, out, _ = fedkeel("run", *SMALL, "--lr", "0.05")
    assert code == 0
    assert re.search(r"^fedavg: 3 rounds in .* s\n  accuracy   0\.\d+ final, 0\.\d+ best\n", out)
    for line in ("floats     1.95 k up, 1.95 k down per participating client", "engine     sequential", f"files      {OUT}"):
        assert line in out
    files = {path.name for path in (tmp_path / OUT).iterdir()}
    assert {"config.toml", "metrics.jsonl", "model.safetensors", "summary.json"} <= files
    assert "lr = 0.05" in (tmp_path / OUT / "config.toml").read_text()

    stamp = (tmp_path / OUT / "model.safetensors").stat().st_mtime_ns
    for command in (["run", *SMALL, "--lr=0.05"], ["resume", OUT]):
        code, again, _ = fedkeel(*command)
        assert code == 0
        assert again.splitlines()[0] == f"{OUT} holds this run already, and it is complete (--fresh runs it again)"
        assert again.splitlines()[1:] == out.splitlines()
    assert (tmp_path / OUT / "model.safetensors").stat().st_mtime_ns == stamp


def test_another_config_in_the_same_directory(fedkeel, tmp_path):
    fedkeel("run", *SMALL)
    before = (tmp_path / OUT / "metrics.jsonl").read_bytes()
    message = error_of(fedkeel("run", *SMALL, "--server-lr", "0.5", "--out", OUT))
    hint = "choose another --out, or --fresh to replace it"
    assert message == f"error: {OUT} holds a run with server_lr = 1.0, this one has 0.5; {hint}"
    error_of(fedkeel("run", *SMALL, "--model", "nope", "--fresh"))
    assert (tmp_path / OUT / "metrics.jsonl").read_bytes() == before
    code, out, _ = fedkeel("run", *SMALL, "--server-lr", "0.5", "--fresh")
    assert (code, out.splitlines()[0][:16]) == (0, "fedavg: 3 rounds")
    assert "server_lr = 0.5" in (tmp_path / OUT / "config.toml").read_text()


def test_a_run_continues_after_ctrl_c(fedkeel, tmp_path, monkeypatch):
    from fedkeel.engine.loop import Trainer

    one_round = Trainer._round

    def interrupted(self, runner):
        if self.state.t == 2:
            raise KeyboardInterrupt
        return one_round(self, runner)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_round", interrupted)
        code, _, err = fedkeel("run", *SMALL, "--out", "runs/my run")
        assert code == 130
        assert err.splitlines()[-1] == "interrupted; go on with: fedkeel resume 'runs/my run'"
    code, out, _ = fedkeel("run", *SMALL, "--out", "runs/my run")
    assert code == 0
    assert re.match(r"continuing runs/my run at round [012] of 3\nfedavg: 3 rounds", out)
    fedkeel("run", *SMALL, "--out", "unbroken")
    assert (tmp_path / "runs/my run/model.safetensors").read_bytes() == (
        tmp_path / "unbroken/model.safetensors"
    ).read_bytes()


def test_a_run_that_fails_says_how_to_continue(fedkeel):
    message = error_of(fedkeel("run", *SMALL, "--lr", "1e38", "--rounds", "9"), code=1)
    assert message.startswith("error: fedavg, round ")
    assert message.endswith(f"go on with: fedkeel resume {OUT}")


def test_a_damaged_checkpoint(fedkeel, tmp_path):
    fedkeel("run", *SMALL)
    (tmp_path / OUT / "summary.json").unlink()
    for name in ("checkpoint.safetensors", "checkpoint-previous.safetensors"):
        (tmp_path / OUT / name).write_bytes(b"not a checkpoint")
    message = error_of(fedkeel("resume", OUT))
    assert f"checkpoint: {OUT}/checkpoint.safetensors is damaged" in message


def test_out_cannot_be_written(fedkeel, tmp_path):
    (tmp_path / "file").write_text("")
    assert "out: cannot write file/run: Not a directory" in error_of(fedkeel("run", *SMALL, "--out", "file/run"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run --algorithm fedavgg", "algorithm: unknown name 'fedavgg'; did you mean fedavg"),
        ("run --lr -0.1", "fedavg: lr = -0.1 is not allowed; it must be > 0"),
        ("run --lr high", "fedavg: lr = 'high' is not allowed; it must be > 0"),
        ("run --lr=", "fedavg: lr = '' is not allowed; it must be > 0"),
        ("run --lr", "option --lr needs a value; it must be > 0"),
        ("run --concentration 0", "concentration = 0 is not allowed; it must be > 0"),
        ("run --cohort 101", "cohort = 101 is not allowed; it must be from 1 to the number of clients, 100"),
        ("run --cohort 1.5", "cohort = 1.5 is not allowed; it must be > 0 and <= 1 as a fraction"),
        ("run --clients ten", "clients = 'ten' is not allowed; it must be a whole number >= 1"),
        ("run --roudns 5", "unknown option --roudns; did you mean --rounds"),
        ("run --zzz 5", "unknown option --zzz; fedavg has --lr, --server-lr"),
        ("run --alpha 5", "unknown option --alpha"),
        ("run --model mpl", "model: unknown name 'mpl'; did you mean mlp"),
        ("run --rounds", "Option '--rounds' requires an argument"),
        ("run none.toml", "study: cannot read none.toml: No such file or directory"),
        ("run a.toml b.toml", "unexpected extra argument"),
        ("resume nowhere", "resume: nowhere holds no run"),
        ("resume", "Missing argument 'DIRECTORY'"),
        ("rnu", "No such command 'rnu'"),
        ("algorithms fedlad", "algorithm: unknown name 'fedlad'; did you mean fedlada"),
        ("datasets show digts", "data: unknown name 'digts'; did you mean digits"),
        ("datasets show digits --clients 0", "clients = 0 is not allowed"),
        ("compare", "algorithms: there are none; for example fedavg,scaffold,fedlada"),
        ("compare --algorithms fedavg --lr 0.1", "unknown option --lr; hyper-parameters are set by method here"),
        ("compare --algorithms fedavg --roudns 3", "unknown option --roudns; did you mean --rounds"),
        ("reproduce lada/tab2", "recipe: lada/tab2 lists the data sets: there is nothing to run"),
        ("reproduce lada/tab55", "recipe: unknown name 'lada/tab55'; did you mean lada/tab5"),
        ("compare --algorithms fedavg --set fedavg.rl=1", "fedavg: unknown hyper-parameter 'rl'; did you mean lr"),
        ("compare --algorithms fedavg,fedavg", "algorithms = 'fedavg,fedavg' is not allowed"),
        ("compare --algorithms fedavg --set scaffold.lr=1", "scaffold is not among the methods: fedavg"),
        ("compare --algorithms fedavg --set lr=1", "it must be METHOD.NAME=VALUE"),
        ("compare --algorithms fedavg --set fedavg.lr=-1", "fedavg: lr = -1 is not allowed; it must be > 0"),
        ("compare --algorithms fedavg --target 2", "target = 2.0 is not allowed"),
        ("compare --algorithms fedavg --seeds 0", "seeds = 0 is not allowed; it must be a whole number >= 1"),
    ],
)
def test_bad_input(fedkeel, tmp_path, words, message):
    result = fedkeel(*words.split())
    assert message in error_of(result)
    assert result[1] == ""
    assert list(tmp_path.iterdir()) == []


def test_unexpected_errors_show_a_traceback_only_on_request(fedkeel, monkeypatch):
    def broken():
        raise KeyError("oops")

    monkeypatch.setattr("fedkeel.cli.tables.algorithm_table", broken)
    message = error_of(fedkeel("algorithms"), code=1)
    assert message == "error: unexpected KeyError: 'oops' (--debug shows the traceback)"
    for words in (["--debug", "algorithms"], ["algorithms", "--debug"]):
        code, _, err = fedkeel(*words)
        assert code == 1
        assert "Traceback" in err


def test_options_override_the_study_file(fedkeel, tmp_path):
    (tmp_path / "study.toml").write_text(
        'clients = 10\nrounds = 3\ncohort = 0.3\nlocal_epochs = 1\nmodel = "logistic"\nengine = "sequential"\n'
        'algorithm = "fedlada"\n[hyperparameters]\nalpha = 0.2\nlr = 0.01\n'
    )
    words = ["run", "study.toml", "--rounds", "2", "--lr", "0.02", "--batch-size", "all", "--out", "a"]
    assert fedkeel(*words)[0] == 0
    found = config.read(tmp_path / "a" / "config.toml")
    assert (found.rounds, found.cohort, found.local_epochs, found.batch_size) == (2, 0.3, 1, "all")
    assert (found.hyperparameters["alpha"], found.hyperparameters["lr"]) == (0.2, 0.02)
    assert fedkeel("run", "study.toml", "--algorithm", "fedavg", "--out", "b", "--local-steps", "1")[0] == 0
    found = config.read(tmp_path / "b" / "config.toml")
    assert found.hyperparameters == {"lr": 0.1, "server_lr": 1.0}
    assert (found.local_steps, found.local_epochs) == (1, None)


def test_hyperparameters_by_type(fedkeel, tmp_path):
    words = ["--algorithm", "fadamet", "--persist-vhat", "--tracking", "2", "--out", "run"]
    assert fedkeel("run", *words, *SMALL)[0] == 0
    found = config.read(tmp_path / "run" / "config.toml").hyperparameters
    assert found["persist_vhat"] is True
    assert found["tracking"] == 2
    assert fedkeel("run", *SMALL, "--algorithm", "scaffold", "--option=I", "--out", "other")[0] == 0
    assert config.read(tmp_path / "other" / "config.toml").hyperparameters["option"] == "I"


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_of_methods_fits(fedkeel, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = fedkeel("algorithms")
    assert code == 0
    assert max(map(len, out.splitlines())) <= width
    for name in fk.algorithms():
        assert re.search(rf"^ {re.escape(name)} ", out, re.MULTILINE), name
    groups = re.findall(rf"^ ({'|'.join(PROBLEMS)})$", re.sub(" +$", "", out, flags=re.MULTILINE), re.MULTILINE)
    assert groups == list(PROBLEMS)  # every problem once, in their order
    scaffold = next(line for line in out.splitlines() if line.startswith(" scaffold "))
    assert re.search(r"\+ c - c_i .* 1 +2 +2 +1\b", scaffold)  # memory, up, down, gradients
    assert ("Karimireddy et al. 2020" in scaffold) == (width == 160)


def test_the_page_of_a_method(fedkeel):
    code, out, _ = fedkeel("algorithms", "fedlada")
    assert code == 0
    for field in dataclasses.fields(fk.algorithm("fedlada")):
        assert re.search(rf"^ {field.name} ", out, re.MULTILINE)
    for words in ("Clients run AMSGrad", ">= 0 and <= 1", "0.01, 0.05, 0.1,", "up 2, down 3 a round", "Sun et al. 2023"):
        assert words in out
    assert out.startswith("fedlada, for adaptivity and drift\n")
    assert f"drift: {PROBLEMS['drift']}" in " ".join(out.split())
    assert out.splitlines()[-1] == "fedkeel run --algorithm fedlada --lr 0.001 --alpha 0.1"


def test_data_sets(fedkeel):
    code, out, _ = fedkeel("datasets")
    assert code == 0
    assert re.search(r"^ digits +Handwritten digits", out, re.MULTILINE)
    code, out, _ = fedkeel("datasets", "show", "digits", "--split", "shards", "--clients", "10", "--per-client", "1")
    assert code == 0
    assert "1,437 training and 360 test samples of shape 1 x 8 x 8, 10 classes" in out
    rows = dict(re.findall(r"^ (label entropy|total variation) +([\d. ]+)$", out, re.MULTILINE))
    entropy, distance = ([float(z) for z in rows[name].split()] for name in ("label entropy", "total variation"))
    assert max(entropy) < 0.7
    assert min(distance) > 0.7


def test_summary_json_is_what_was_printed(fedkeel, tmp_path):
    _, out, _ = fedkeel("run", *SMALL)
    found = json.loads((tmp_path / OUT / "summary.json").read_text())
    assert f"{found['final_accuracy']:.4f} final, {found['best_accuracy']:.4f} best" in out
