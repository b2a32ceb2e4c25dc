"""Flower's strategies: their `aggregate_train`, fed with the replies of clients that run plain SGD, without a network.

The strategies only aggregate, so the clients run fedkeel's SGD. The test compares the server's step.
"""

from __future__ import annotations

import logging

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Strategy
from flwr.supercore.task_identity import TaskIdentity
from problem import PARTIAL, Problem, flat, serve, sgd, split

logging.disable(logging.CRITICAL)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # a message carries them; the launcher sets them
LR = 0.1
LATE = 10**6  # as the number of a round it makes Adam's bias correction 1


class NoGrid:
    """configure_train keeps the current weights in the strategy; the receivers do not matter here."""

    def get_node_ids(self) -> list[int]:
        return [1, 2]


def record(w: np.ndarray) -> ArrayRecord:
    return ArrayRecord({f"p{j}": Array(np.ascontiguousarray(z)) for j, z in enumerate(split(w))})


def reply(w: np.ndarray, examples: int) -> Message:
    request = Message(content=RecordDict(), dst_node_id=1, message_type=MessageType.TRAIN)
    content = RecordDict({"arrays": record(w), "metrics": MetricRecord({"num-examples": examples})})
    return Message(content=content, reply_to=request)


def run(p: Problem, strategy: Strategy, first: int = 1) -> list[np.ndarray]:
    w, seen = p.x0, []
    for t, ids in enumerate(PARTIAL):
        strategy.configure_train(first + t, record(w), ConfigRecord(), NoGrid())
        replies = [reply(sgd(w, p.batches(t, i), LR), p.size(i)) for i in ids]
        arrays, _ = strategy.aggregate_train(first + t, replies)
        w = flat(arrays.to_numpy_ndarrays())
        seen.append(w)
    return seen


serve(
    {
        "fedavg": lambda p: run(p, FedAvg()),
        "fedavgm": lambda p: run(p, FedAvgM(server_learning_rate=0.7, server_momentum=0.6)),
        "fedadagrad": lambda p: run(p, FedAdagrad(eta=0.2, tau=0.01)),
        "fedyogi": lambda p: run(p, FedYogi(eta=0.1, beta_1=0.8, beta_2=0.9, tau=0.01)),
        "fedadam": lambda p: run(p, FedAdam(eta=0.1, beta_1=0.8, beta_2=0.9, tau=0.01)),
        "fedadam late": lambda p: run(p, FedAdam(eta=0.1, beta_1=0.8, beta_2=0.9, tau=0.01), first=LATE),
    }
)
