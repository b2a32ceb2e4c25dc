"""How fast the clients are: speed, bandwidth and latency, and how they differ from client to client.

A run with a fleet has a clock of virtual seconds. They follow from the numbers of the fleet, the gradients that a client
computes and the bytes that it sends and receives, never from the machine that runs the simulation.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.errors import nearest, refuse
from fedkeel.files import read_toml

if TYPE_CHECKING:
    import numpy as np

SPEEDS = ("speed", "up", "down", "latency")
# The network numbers of phones and hospitals are the means of all countries in the Speedtest Global Index of September 2020.
# Spreads and speeds of computation are assumptions, as `source` says.
PROFILES: dict[str, dict[str, Any]] = {
    "phones": {
        "source": "network: Speedtest Global Index, September 2020, mobile (36 Mbit/s down, 11.2 Mbit/s up, 40 ms); "
        "assumed: 1 GFLOP/s in training, spreads of 1.0 (computation) and 0.8 (network)",
        "speed": 1e9,
        "up": 11.22e6 / 8,
        "down": 35.96e6 / 8,
        "latency": 0.04,
        "speed_spread": 1.0,
        "up_spread": 0.8,
        "down_spread": 0.8,
        "latency_spread": 0.5,
    },
    "hospitals": {
        "source": "network: Speedtest Global Index, September 2020, fixed lines (86 Mbit/s down, 46 Mbit/s up, 21 ms); "
        "assumed: 1 TFLOP/s in training (one workstation), spreads of 0.5",
        "speed": 1e12,
        "up": 45.74e6 / 8,
        "down": 85.73e6 / 8,
        "latency": 0.021,
        "speed_spread": 0.5,
        "up_spread": 0.5,
        "down_spread": 0.5,
        "latency_spread": 0.3,
    },
    "datacentres": {
        "source": "assumed: 50 TFLOP/s in training, 10 Gbit/s both ways, 5 ms between centres, spreads of 0.1",
        "speed": 50e12,
        "up": 10e9 / 8,
        "down": 10e9 / 8,
        "latency": 0.005,
        "speed_spread": 0.1,
        "up_spread": 0.1,
        "down_spread": 0.1,
        "latency_spread": 0.1,
    },
}


class Fleet:
    """The speeds of the clients: a named profile (phones, hospitals, datacentres), or a TOML file with these keys.

    speed: floating-point operations per second in training.  up, down: bytes per second.  latency: seconds per message.
    These are medians over the clients. speed_spread, up_spread, down_spread and latency_spread are the standard deviations
    of their logarithms (default 0: all clients alike).  source: where the numbers come from.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise refuse("clock", name, "a profile, a TOML file, or fedkeel.Fleet(...)")
        self.name = name
        if not name.endswith(".toml") and name not in PROFILES:
            raise ValueError(f"clock: unknown profile {name!r}{nearest(name, PROFILES)} Or give a file NAME.toml.")
        values = PROFILES[name] if name in PROFILES else read_toml(Path(name).expanduser())
        known = ("source", *SPEEDS, *(f"{key}_spread" for key in SPEEDS))
        for key in values:
            if key not in known:
                raise ValueError(f"clock: {name}: unknown key {key!r}{nearest(key, known)}")
        self.source = str(values.get("source", ""))
        self.median = {key: _number(name, values, key, zero=key == "latency") for key in SPEEDS}
        self.spread = {key: _number(name, {f"{key}_spread": 0.0} | values, f"{key}_spread", zero=True) for key in SPEEDS}

    def __repr__(self) -> str:
        return f"Fleet({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fleet) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.identity())

    def identity(self) -> str:
        """The numbers, which a run that resumes must have, too."""
        return ", ".join(f"{key} {self.median[key]:g} spread {self.spread[key]:g}" for key in SPEEDS)

    def clients(self, seed: int, N: int) -> dict[str, np.ndarray]:
        """speed, up, down and latency of every client, [N] each."""
        import numpy as np

        from fedkeel.engine import seeding

        normal = seeding.generator(seed, seeding.FLEET, 0).standard_normal((len(SPEEDS), N))
        return {key: self.median[key] * np.exp(self.spread[key] * z) for key, z in zip(SPEEDS, normal, strict=True)}


def _number(name: str, values: dict[str, Any], key: str, zero: bool) -> float:
    if key not in values:
        raise ValueError(f"clock: {name}: {key} is missing; a fleet needs {', '.join(SPEEDS)}")
    value = values[key]
    good = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if not good or value < 0 or (value == 0 and not zero) or (zero and math.isinf(value)):
        raise refuse(f"clock: {name}: {key}", value, "a finite number >= 0" if zero else "a number > 0 (inf is allowed)")
    return float(value)
