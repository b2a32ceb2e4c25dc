"""Methods and data sets of other packages: by entry points, and by package.module:Class."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedkeel as fk

METHOD = '''
from dataclasses import dataclass
from fedkeel.core.algorithm import algorithm
from fedkeel.methods.fedavg import FedAvg

@algorithm("Their-Avg", paper="none", sends="x", exact=False, family="SGD", solves="drift")
@dataclass(frozen=True, kw_only=True)
class TheirAvg(FedAvg):
    """FedAvg under another name."""

class NotRegistered(FedAvg):
    pass

something = 3

def blobs():
    import fedkeel as fk
    data = fk.load("digits")
    return fk.Dataset("blobs", data.x[:200], data.y[:200], data.test)
'''


@pytest.fixture
def package(tmp_path):
    """An installed package that announces a method and a data set, and one that cannot be imported."""
    (tmp_path / "theirs.py").write_text(METHOD)
    for name, points in {
        "theirs": "[fedkeel.methods]\ntheir-avg = theirs:TheirAvg\n[fedkeel.datasets]\nBlobs = theirs:blobs\n",
        "broken": "[fedkeel.methods]\nbroken = no_such_module:Method\n",
    }.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(points)
    return tmp_path


def fedkeel(package: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    source = str(Path(fk.__file__).parents[1])
    place = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{package}"}
    command = [sys.executable, "-m", "fedkeel", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=package, env=place, check=False)


@pytest.mark.slow
def test_entry_points_announce_methods_and_data_sets(package):
    words = ["--clients", "3", "--rounds", "1", "--model", "logistic", "--out", "x", "--engine", "sequential"]
    done = fedkeel(package, "run", "their-avg", "--data", "blobs", *words)
    assert done.returncode == 0, done.stderr
    assert "Their-Avg: 1 rounds" in done.stdout
    listed = fedkeel(package, "algorithms")
    assert "Their-Avg" in listed.stdout
    assert "broken" in listed.stderr  # is named, and does not take the other methods with it


def test_a_method_by_its_class(package, monkeypatch):
    monkeypatch.chdir(package)
    monkeypatch.syspath_prepend(str(package))
    try:
        assert fk.algorithm("theirs:TheirAvg", lr=0.5).lr == 0.5
        for name, words in {
            "theirs:NotThere": "has no 'NotThere'",
            "theirs:something": "it must be a subclass of fedkeel.Algorithm",
            "theirs:NotRegistered": "decorate it by @algorithm",
            "nowhere:Method": "cannot import 'nowhere'",
            "theirs:": "package.module:Class",
        }.items():
            with pytest.raises(ValueError, match=words):
                fk.algorithm(name)
    finally:
        from fedkeel.core.algorithm import registered

        registered.pop("Their-Avg", None)
        sys.modules.pop("theirs", None)
