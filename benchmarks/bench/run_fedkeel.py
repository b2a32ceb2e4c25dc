"""fedkeel: the public `train`, with its callback as the clock.

run_fedkeel.py WORKLOAD ENGINE                  as it is
run_fedkeel.py WORKLOAD ENGINE channels_last    with this memory format
run_fedkeel.py WORKLOAD ENGINE padded           texts: without buckets of similar length
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from clock import WARM_UP, Clock
from workloads import LR, WORKLOADS, arrays

import fedkeel as fk
from fedkeel.engine.runners import auto

ROUNDS = 1000  # the run that `auto` chooses an engine for; it is stopped when the passes are over

name, engine, *changes = sys.argv[1:]
w, (x, y) = WORKLOADS[name], arrays(name)
clock = Clock(1 if w.rounds == 1 else WARM_UP)
fed = fk.Federation(torch.from_numpy(x), torch.from_numpy(y), np.arange(w.clients + 1) * w.samples)


choose = auto.choose


def choose_and_tell(*facts: Any) -> tuple[str, str]:
    """Reports what `auto` chose. Usually the result of a run says it, but this run is stopped before its end."""
    chosen = choose(*facts)
    clock.tell(engine=chosen[0], why=chosen[1])
    return chosen


if "padded" in changes:
    from fedkeel.models import length_buckets

    length_buckets.bucket_cuts = lambda lengths: [0, len(lengths)]
auto.choose = choose_and_tell
fk.train(
    w.module, fed, fk.algorithm("fedavg", lr=LR), rounds=ROUNDS, cohort=w.cohort, local_steps=w.steps,
    batch_size=w.batch, engine=engine, evaluate_every=0, progress=lambda row: clock.tick(),
    memory_format="channels_last" if "channels_last" in changes else None,
)  # fmt: skip
