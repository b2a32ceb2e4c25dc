"""The names of the measurements that `metrics=` takes, and which method each of them is defined for.

The measurements themselves are in `engine/metrics.py`, which a run imports only if it needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from fedkeel.core.algorithm import Algorithm, Plan
from fedkeel.core.flat import Layers
from fedkeel.core.trial import trial_upload
from fedkeel.errors import nearest, refuse

METRIC_NAMES = ("train", "gradient_norm", "consistency", "drift", "tracking", "qp")
NEED_UPLOADS = {"consistency", "drift", "qp"}  # these look at the uploads one by one
CONTROL_VARIATES = ("c", "y", "lam")  # fields of a client's record that estimate its gradient (or Adam direction)


def check_metrics(names: Sequence[str], algo: Algorithm) -> None:
    """Raises if there is no such measurement, or if it needs something that this method does not have."""
    # A string is a sequence of letters, so `metrics="train"` would otherwise fail in a confusing way.
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise refuse("metrics", names, f"a list of names: {', '.join(METRIC_NAMES)}")
    for name in names:
        if name not in METRIC_NAMES:
            raise ValueError(f"metrics: unknown name {name!r}{nearest(name, METRIC_NAMES)}")
    if names and algo.facts.private:
        raise ValueError(f"metrics: {algo.name} does not have one global model, so only its accuracy can be measured")
    if "tracking" in names and control_variate(algo.init(torch.zeros(2))[1]) is None:
        kept = ", ".join(CONTROL_VARIATES)
        raise ValueError(f"metrics: 'tracking' is not defined for {algo.name}: its clients keep no {kept}")
    if "qp" in names and not _has_memory(algo):
        raise ValueError(
            f"metrics: 'qp' is not defined for {algo.name}; only for gradma, gradma-s and methods with such a server"
        )
    displaced = {"consistency", "drift"} & set(names)
    if displaced and not _uploads_dx(algo):
        raise ValueError(
            f"metrics: {min(displaced)!r} is not defined for {algo.name}: it does not upload dx, local minus global model"
        )


def control_variate(record: Any) -> Any:
    """The control variate in a record of a client or server; None if it has none."""
    return next((getattr(record, name) for name in CONTROL_VARIATES if hasattr(record, name)), None)


def _has_memory(algo: Algorithm) -> bool:
    """Does it have what `qp` reads: a server momentum with decays, a memory of displacements, and new displacements?"""
    server = algo.init(torch.zeros(2))[0]
    kept = all(hasattr(server, name) for name in ("m", "D", "ids"))
    return kept and hasattr(algo, "beta1") and hasattr(algo, "beta2") and _uploads_dx(algo)


def _uploads_dx(algo: Algorithm) -> bool:
    planned = algo.plan(Plan(N=1, S=1, K=1.0, T=1))
    return hasattr(trial_upload(planned, "client", Layers([2, 1]), torch.float32), "dx")
