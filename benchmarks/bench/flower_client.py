"""The ClientApp of run_flower.py. It is a separate module, so that Flower's actors import it once and keep its data."""

from __future__ import annotations

import functools
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from workloads import LR, WORKLOADS, arrays

client_app = ClientApp()


@functools.cache
def kept(name: str) -> tuple[Any, nn.Module, torch.Tensor, torch.Tensor]:
    """Model and data, loaded once by every actor."""
    torch.set_num_threads(1)
    return WORKLOADS[name], WORKLOADS[name].module(), *map(torch.from_numpy, arrays(name))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """The local steps of run_plain.py."""
    w, model, x, y = kept(str(message.content["config"]["workload"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    first = int(context.node_config["partition-id"]) * w.samples
    order = torch.cat([torch.randperm(w.samples) for _ in range(-(-w.steps * w.batch // w.samples))])
    for k in range(w.steps):
        chosen = first + order[k * w.batch : (k + 1) * w.batch]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": w.samples})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
