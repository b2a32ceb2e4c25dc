"""Laws of conditions for every method by itself: engines agree, a resumed run agrees, what is not valid is refused.

Each combination holds all conditions that can be on together. Neutral settings and golden bits: test_conditions.py and
tests/engine/test_clock.py. Counted bytes are packed bytes: tests/deploy/test_deploy_conditions.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel.channel.validity import CONDITIONS
from tests.tasks import digits_fed, full_only, same_record

LINKS = {"uplink": "topk:0.1+quantize:6", "downlink": "quantize:10", "attack": "sign-flip:fraction=0.25,scale=0.5"}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "privacy": LINKS | {"privacy": "gaussian:clip=0.5,noise=0.1", "participation": "markov:on=0.6,off=0.2"},
    "local privacy": {"privacy": "gaussian:clip=0.5,noise=0.01,where=client", "downlink": "quantize:10"},
    "aggregation": LINKS | {"aggregation": "multi-krum:0.25", "clock": "phones", "overselect": 1.5},
    "buffer": LINKS | {"clock": "phones", "buffer": 2, "concurrency": 4},
}
FED = digits_fed(clients=8)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10))


def run(name: str, conditions: dict[str, Any], **changes: Any) -> fk.Run:
    options = {"allow_partial": True} if full_only(name) else {}
    common = {"rounds": 3, "cohort": 4, "local_steps": 2, "batch_size": 20, "engine": "sequential", "seed": 2}
    settings = common | {"progress": False} | conditions | changes
    return fk.train(model, FED, fk.algorithm(name, **options), **settings)


class Killed(BaseException):
    """Nothing catches it, as nothing catches a signal."""


def killed_in_round_2(row: dict[str, Any], state: Any) -> None:
    if row["round"] == 1:
        raise Killed


def check_same(a: fk.Run, b: fk.Run) -> None:
    assert same_record(a.server, b.server)
    assert all(same_record(a.clients[i], b.clients[i]) for i in range(len(FED)))
    assert str([{**row, "seconds": 0} for row in a.history]) == str([{**row, "seconds": 0} for row in b.history])


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMBINATIONS)
@pytest.mark.parametrize("name", fk.algorithms())
def test_every_method_under_every_condition(name: str, kind: str, tmp_path: Path) -> None:
    made = fk.algorithm(name)
    off = [other for other in ("uplink", "attack") if CONDITIONS[other](made)]
    conditions = {key: value for key, value in COMBINATIONS[kind].items() if key not in off}
    if why := CONDITIONS[kind](made):
        with pytest.raises(ValueError, match=r"is not allowed with") as refused:
            run(name, conditions)
        assert why in str(refused.value)
        return
    whole = run(name, conditions)
    check_same(whole, run(name, conditions, engine="processes", workers=2))
    with pytest.raises(Killed):
        run(name, conditions, out=tmp_path, callbacks=[killed_in_round_2])
    check_same(whole, run(name, conditions, out=tmp_path, resume=True))


def test_the_table_of_conditions_is_computed() -> None:
    """A method of the user's that looks at single uploads is refused without a word in its file."""
    from fedkeel.methods.fedavg import FedAvg

    class Looks(FedAvg):
        def server(self, s: Any, up: Any, r: Any) -> Any:
            return s._replace(x=s.x + up.dx.max(0).values)

    wrong = {name for name, why_not in CONDITIONS.items() if why_not(Looks())}
    assert wrong == {"privacy", "aggregation", "buffer"}
    assert not any(why_not(FedAvg()) for why_not in CONDITIONS.values())
