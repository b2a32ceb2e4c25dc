"""FedAvg as you would write it without a framework: a model, torch.optim.SGD, state dicts.  run_plain.py WORKLOAD"""

from __future__ import annotations

import sys

import torch
from clock import WARM_UP, Clock, faster_threads
from torch import nn
from workloads import LR, WORKLOADS, arrays

name = sys.argv[1]
w, (x, y) = WORKLOADS[name], map(torch.from_numpy, arrays(name))
clock = Clock(1 if w.rounds == 1 else WARM_UP)
model = w.module()
x_global = {key: z.clone() for key, z in model.state_dict().items()}


def batches(client: int):
    """`steps` mini-batches of a client, without replacement within an epoch."""
    epochs = -(-w.steps * w.batch // w.samples)
    order = torch.cat([torch.randperm(w.samples) for _ in range(epochs)])
    for k in range(w.steps):
        chosen = client * w.samples + order[k * w.batch : (k + 1) * w.batch]
        yield x[chosen], y[chosen]


def one_round() -> None:
    total = {key: torch.zeros_like(z) for key, z in x_global.items()}
    for client in torch.randperm(w.clients)[: w.cohort].tolist():
        model.load_state_dict(x_global)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for inputs, labels in batches(client):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        for key, z in model.state_dict().items():
            total[key] += z / w.cohort
    x_global.update(total)


faster_threads(one_round, clock)
while True:
    one_round()
    clock.tick()
