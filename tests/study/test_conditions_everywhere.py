"""Every condition is a keyword of `fk.train`, a key of study files, an option of commands, and an axis of a sweep."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel.engine.settings import Settings

# A setting, two values, and further settings that it needs. The first value is also given as an object in Python.
CONDITIONS: list[tuple[str, Any, Any, Any, dict[str, Any]]] = [
    ("privacy", fk.Privacy(clip=0.5, noise=0.8), "gaussian:clip=0.5,noise=0.8", "gaussian:clip=2,noise=0.8", {}),
    ("uplink", [fk.TopK(0.1), fk.Quantize(4)], "topk:0.1+quantize:4", "sign", {}),
    ("downlink", fk.Quantize(4), "quantize:4", "quantize:6", {}),
    ("aggregation", fk.TrimmedMean(0.3), "trimmed:0.3", "krum:0.3", {}),
    ("attack", fk.SignFlip(0.5), "sign-flip:0.5", "noise:0.5", {}),
    ("participation", fk.participation("cyclic", groups=3), "cyclic:groups=3", "bernoulli:p=0.4", {}),
    ("clock", fk.Fleet("phones"), "phones", "hospitals", {"deadline": 0.08}),
    ("deadline", 0.08, 0.08, 60.0, {"clock": "phones"}),
    ("overselect", 1.5, 1.5, 3.0, {"clock": "phones"}),
    ("buffer", 2, 2, 4, {"clock": "phones"}),
    ("concurrency", 2, 2, 6, {"clock": "phones", "buffer": 2}),
    ("staleness", "constant", "constant", "sqrt", {"clock": "phones", "buffer": 2, "concurrency": 7}),
]
TASK = {"data": "digits", "clients": 12, "model": "logistic", "split": "iid", "split_seed": 0}
SMALL = {"rounds": 4, "cohort": 4, "local_steps": 2, "batch_size": 20, "engine": "sequential", "evaluate_every": 0}


def toml(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


@pytest.mark.parametrize(("name", "made", "text", "other", "more"), CONDITIONS, ids=[z[0] for z in CONDITIONS])
def test_a_condition_means_the_same_everywhere(fedkeel, tmp_path, name, made, text, other, more) -> None:
    fed = fk.load("digits").split("iid", clients=12, seed=0)
    python = fk.train(lambda: fk.model("logistic", fed), fed, "scaffold", progress=False, **SMALL, **more, **{name: made})
    options = [f"--{key.replace('_', '-')}={value}" for key, value in (TASK | SMALL | more).items()]
    code, _, told = fedkeel("run", "--algorithm=scaffold", *options, f"--{name}={text}", f"--out={tmp_path / 'run'}")
    assert code == 0, told
    assert torch.equal(fk.open(tmp_path / "run").params, python.params)
    # A study file that sweeps over two values
    settings = TASK | SMALL | more
    axis = f"seeds = 1\n[methods.scaffold]\n[sweep]\n{toml({name: [text, other]})}"
    (tmp_path / "study.toml").write_text(toml(settings) + axis)
    code, _, told = fedkeel("compare", str(tmp_path / "study.toml"), f"--out={tmp_path / 'study'}", "--jobs=1")
    assert code == 0, told
    found = {}
    for path in (tmp_path / "study").rglob("metrics.jsonl"):
        value = tomllib.loads((path.parent / "config.toml").read_text()).get(name, "its default")
        found[str(value)] = [str(json.loads(line)["train_loss"]) for line in path.read_text().splitlines()]
    mine = [str(row["train_loss"]) for row in python.history]
    assert len(found) == 2
    assert found.pop(str(getattr(Settings(**more | {name: text}), name))) == mine
    assert mine not in found.values()


def test_a_sweep_over_a_condition_from_the_command_line(fedkeel, tmp_path) -> None:
    options = [f"--{key.replace('_', '-')}={value}" for key, value in (TASK | SMALL).items()]
    over = "--over=aggregation=mean,median,krum:0.3"
    fedkeel("sweep", "--algorithms=fedavg", *options, over, "--attack=sign-flip:0.5", "--seeds=1", f"--out={tmp_path}")
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["axes"]["aggregation"] for row in rows] == ["mean", "median", "krum:0.3"]
    assert len({row["final_train_loss"] for row in rows}) == 3
