"""`fedkeel check`: methods of another package go through the laws, and every fault is found by the law that is about it."""

import dataclasses
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.core.algorithm import registered
from fedkeel.laws import method_laws

GOOD = Path(fk.__file__).with_name("methods").joinpath("fedavgm.py").read_text().replace('"fedavgm"', '"theirs"')
# What goes wrong -> (a line of the method, the line with the fault, a law that finds it, a word of the answer)
FAULTS = {
    "the server changes uploads": (
        "r.avg(up.dx)",
        "r.avg(up.dx.mul_(2))",
        "inputs do not change, records keep their form (float32)",
        "server changed the uploads",
    ),
    "exact is claimed": ("exact=False", "exact=True", None, "away from the minimiser"),
    "no paper": (
        'paper="Hsu et al. 2019; Luo et al. 2023 (GradMA), Algorithm 5"',
        'paper=""',
        "the declaration is complete",
        "lacks paper=",
    ),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module with a method and returns `module:Class`."""
    import sys

    written = []

    def write(text):
        name = f"their_method_{len(written)}_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return f"{name}:FedAvgM"

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    registered.pop("theirs", None)
    for name in written:
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_good_method_of_another_package_passes(module, fedkeel):
    code, out, _ = fedkeel("check", module(GOOD))
    assert code == 0, out
    assert "BROKEN" not in out


@pytest.mark.parametrize("fault", FAULTS)
def test_a_law_finds_the_fault(module, fault):
    line, wrong, law, words = FAULTS[fault]
    assert line in GOOD
    name = module(GOOD.replace(line, wrong, 1))
    apply = method_laws.LAWS[law] if law else method_laws.minimiser_is_a_fixed_point_exactly_if_declared
    with pytest.raises(method_laws.BrokenLaw, match=words):
        apply(name)


def test_a_method_that_fails_is_reported_and_not_raised(module, monkeypatch):
    monkeypatch.setattr(method_laws, "LAWS", dict(list(method_laws.LAWS.items())[:1]))
    name = module(
        GOOD.replace("    def init(", "    def init(self, x):\n        raise OSError('no disk')\n\n    def other(")
    )
    found = fk.check(name)
    assert all("no disk" in str(wrong) for wrong in found.values())


def test_the_command_refuses_what_is_no_method(fedkeel):
    code, _, err = fedkeel("check", "json:dumps")
    assert code == 2
    assert "it must be a subclass of fedkeel.Algorithm" in err


def test_hyperparameters_of_the_fixed_point(module):
    """A method may need other values than its defaults to reach a fixed point in a short run."""
    name = module(GOOD)
    fields = {field.name for field in dataclasses.fields(fk.algorithm(name))}
    assert "beta1" in fields
    method_laws.minimiser_is_a_fixed_point_exactly_if_declared(name, lr=0.2)
