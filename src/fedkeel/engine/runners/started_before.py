"""Runs clients that have started from older models, as asynchronous runs have them.

A client's result follows from the model from which it started, its record, and (seed, version, client). So it need not run
when it starts: it runs when the server needs its upload. Until then only the model is kept from which it started.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkeel.engine.client_work import Exchange, RecordStack, Uploads
from fedkeel.engine.runners.runner import Runner


class Sent(NamedTuple):
    """What clients received when they started."""

    down: Any
    buffers: Tensor  # [b]


class StartedBefore:
    """A runner whose clients may have started from different versions of the model."""

    def __init__(self, runner: Runner, sent: dict[int, Sent], version: dict[int, int]) -> None:
        """sent: version -> what it sent.  version: client -> the version from which it started. The loop changes both."""
        self.runner, self.sent, self.version = runner, sent, version

    def run(self, exchange: Exchange) -> Uploads:
        versions = [self.version.get(client, exchange.t) for client in exchange.ids]
        if exchange.stage != "client" or set(versions) == {exchange.t}:
            return self.runner.run(exchange)
        S = len(exchange.ids)
        whole = Uploads(None, exchange.buffers.new_zeros(S, len(exchange.buffers)), torch.zeros(S).double(), {}, {})
        stack: RecordStack | None = None
        for version in sorted(set(versions)):
            positions = [position for position, one in enumerate(versions) if one == version]
            down, buffers = self.sent[version]
            part = self.runner.run(replace(exchange.only(positions), t=version, down=down, buffers=buffers))
            if part.up is not None:
                stack = stack or RecordStack(type(part.up)(*(z[0] for z in part.up)), S)
                stack.put(positions, part.up)
            whole.buffers[positions], whole.losses[positions] = part.buffers, part.losses
            whole.faults |= {positions[number]: why for number, why in part.faults.items()}
            whole.slots |= {positions[number]: slot for number, slot in part.slots.items()}
            whole.extra_columns |= part.extra_columns
            whole.cause = whole.cause or part.cause
        whole.up = None if stack is None else stack.record
        return whole

    def close(self) -> None:
        self.runner.close()
