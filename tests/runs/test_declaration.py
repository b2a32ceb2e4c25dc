"""Settings are declared once: `fk.train`, RunConfig and the command line have the same defaults."""

import inspect
from dataclasses import fields

import fedkeel as fk
from fedkeel.core.algorithm import lookup
from fedkeel.engine.settings import Settings
from fedkeel.runs.config import SETTINGS


def test_defaults_are_the_same_everywhere():
    signature = inspect.signature(fk.train).parameters
    assert signature["cohort"].default is None  # 10, or all clients if there are fewer
    for field in fields(Settings):
        if field.name == "cohort":
            continue
        assert signature[field.name].default == field.default == SETTINGS[field.name].default
    assert (Settings().rounds, Settings().cohort, Settings().local_steps, Settings().batch_size) == (100, 10, 10, 20)


def test_a_run_builds_its_method_and_its_model_once(fedkeel, monkeypatch):
    built = {"method": 0, "model": 0}

    def counted(name, function):
        def call(*args, **kw):
            built[name] += 1
            return function(*args, **kw)

        return call

    import fedkeel.models as models

    monkeypatch.setattr(models, "make_model", counted("model", models.make_model))
    monkeypatch.setattr(lookup("fedavg"), "__init__", counted("method", lookup("fedavg").__init__))
    assert fedkeel("run", "--rounds", "1", "--engine", "sequential", "--out", "x")[0] == 0
    assert built == {"method": 1, "model": 1}
