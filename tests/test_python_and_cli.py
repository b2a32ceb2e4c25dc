"""The table of options and arguments is complete on both sides, true, and up to date."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.study.file import STUDY_KEYS

FILE = Path(__file__).parents[1] / "benchmarks" / "python_and_cli.py"
spec = importlib.util.spec_from_file_location("python_and_cli", FILE)
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)


def test_every_option_has_its_python():
    missing = [
        (command, written) for command, option, written in table.options() if table.in_python(command, option) is None
    ]
    assert missing == [], "say in benchmarks/python_and_cli.py what these are in Python, then run `make options`"


@pytest.mark.parametrize("function", table.FUNCTIONS)
def test_every_argument_has_its_option(function):
    missing = [name for name in table.arguments(function) if table.on_command_line(function, name) is None]
    assert missing == [], "say in benchmarks/python_and_cli.py what these are on the command line, then run `make options`"


def test_the_python_that_it_names_exists():
    """fk.NAME(..., argument=) names a public function that takes this argument."""
    from fedkeel.data.federation import Dataset
    from fedkeel.data.partition import PARTITIONS
    from fedkeel.runs.config import SETTINGS

    known = {*SETTINGS, *STUDY_KEYS, "ray", "slurm", "tensorboard", "mlflow", "wandb"}  # **settings of the studies
    split = {name for kind in PARTITIONS.values() for name in inspect.signature(kind).parameters}
    for command, option, _ in table.options():
        text = table.in_python(command, option) or ""
        for function, argument in re.findall(r"fk\.(\w+)\([^`]*?(\w+)=", text):
            taken = inspect.signature(getattr(fk, function)).parameters
            hyperparameter = function == "algorithm"
            assert argument in taken or hyperparameter or ("settings" in taken and argument in known), text
        for argument in re.findall(r"data\.split\([^`]*?(\w+)=", text):
            assert argument in split | set(inspect.signature(Dataset.split).parameters), text
        for path in re.findall(r"`(fedkeel\.[\w.]+)", text):
            module, _, name = path.rpartition(".")
            while importlib.util.find_spec(module) is None:
                module, _, name = module.rpartition(".")
            assert hasattr(importlib.import_module(module), name), path


def test_nothing_is_said_of_options_that_do_not_exist():
    there = {(command, option) for command, option, _ in table.options()}
    for command, option in table.OPTION_IN_PYTHON:
        assert any(option == one and command in ("*", name) for name, one in there), (command, option)


def test_the_page_is_up_to_date():
    assert table.PAGE.read_text() == table.page(), "run `make options`"
