"""How much time it saves to compute the frozen blocks once per text: seconds of a round with and without kept states.

    python benchmarks/text_prefix.py FOLDER_OF_A_MODEL [DATA] [LORA_LAYERS]

All rounds use the same texts, so their states are known after the first. Both variants take turns, three times, on one core.
The ratio is of CPU time, which other programs disturb least.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import fedkeel as fk
from fedkeel.runs import from_config
from fedkeel.runs.config import RunConfig


def seconds(make: Callable[[], Any], fed: fk.Federation) -> float:
    """CPU time of a round of 4 clients with 5 steps of 32 texts, without evaluation."""
    start = time.process_time()
    fk.train(make, fed, "fedit-adam", rounds=1, cohort=4, local_steps=5, batch_size=32, engine="sequential", progress=False)
    return time.process_time() - start


def main(folder: str, data: str = "sst2", layers: str = "2") -> None:
    config = RunConfig(data=data, model=f"hf:{folder}", split="iid", lora_layers=int(layers), lora_rank=8)
    make, fed = from_config.task(config)
    fed.test = None
    states = make()[0].hidden.states

    def without() -> Any:
        model = make()
        model[0].hidden = None
        return model

    first = seconds(make, fed)  # computes the states of these texts, unless an earlier run has done so
    kept, computed = [], []
    for _ in range(3):
        kept.append(seconds(make, fed))
        computed.append(seconds(without, fed))
    ratios = [b / a for a, b in zip(kept, computed, strict=True)]
    print(f"{data}, adapters in the last {layers} blocks; {states.nbytes / 1e6:,.0f} MB on disk for {len(states):,} tokens")
    print(f"a round of 20 steps: {min(computed):.2f} s without, {min(kept):.2f} s with kept states, {first:.2f} s at first")
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
