"""What cannot be avoided: the arithmetic of a round's batches, on prepared batches.

run_bare.py WORKLOAD one        forward and backward in torch, one thread
run_bare.py WORKLOAD spread     the same, spread over a process with one thread for every core
run_bare.py WORKLOAD one channels_last, run_bare.py WORKLOAD spread channels_last    both with this memory format
run_bare.py WORKLOAD batched    dense networks: all clients at once in batched matrix products by hand, on all threads
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from itertools import cycle

import torch
from clock import WARM_UP, Clock
from torch import Tensor, nn
from workloads import LR, WORKLOADS, arrays

from fedkeel.engine.forked import die_with
from fedkeel.engine.machine import keep_freed_memory

READY = 4  # rounds with prepared batches; more than the cache can hold

name, how, *changes = sys.argv[1:]
w, (x, y) = WORKLOADS[name], map(torch.from_numpy, arrays(name))
memory_format = torch.channels_last if "channels_last" in changes else torch.preserve_format
clock = Clock(1 if w.rounds == 1 else WARM_UP)
keep_freed_memory()  # as fedkeel does
cores = len(os.sched_getaffinity(0))
Batch = tuple[Tensor, Tensor]


def round_of_batches(seed: int) -> list[Batch]:
    """The batches of a round, client after client."""
    torch.manual_seed(seed)
    found = []
    for client in torch.randperm(w.clients)[: w.cohort].tolist():
        for _ in range(w.steps):
            chosen = client * w.samples + torch.randperm(w.samples)[: w.batch]
            found.append((x[chosen].to(memory_format=memory_format), y[chosen]))
    return found


def forward_backward(model: nn.Module, batches: list[Batch]) -> None:
    for inputs, labels in batches:
        for p in model.parameters():
            p.grad = None
        nn.functional.cross_entropy(model(inputs), labels).backward()


def made() -> nn.Module:
    return w.module().to(memory_format=memory_format) if "channels_last" in changes else w.module()


def one() -> None:
    torch.set_num_threads(1)
    model = made()
    for batches in cycle([round_of_batches(seed) for seed in range(READY)]):
        forward_backward(model, batches)
        clock.tick()


def spread() -> None:
    """Workers that compute every `cores`-th batch, so that all have equal work. A pipe starts each round."""
    context = multiprocessing.get_context("fork")
    torch.set_num_threads(1)
    rounds = [round_of_batches(seed) for seed in range(READY)]
    pipes = []
    for worker in range(cores):
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, [r[worker::cores] for r in rounds], os.getpid()), daemon=True).start()
        pipes.append(ours)
    for number in cycle(range(READY)):
        for pipe in pipes:
            pipe.send(number)
        for pipe in pipes:
            pipe.recv()
        clock.tick()


def serve(pipe, rounds: list[list[Batch]], driver: int) -> None:
    die_with(driver)
    torch.set_num_threads(1)
    model = made()
    while True:
        forward_backward(model, rounds[pipe.recv()])
        pipe.send(None)


def batched() -> None:
    torch.set_num_threads(cores)
    start = [(p.detach(), q.detach()) for p, q in zip(*[iter(w.module().parameters())] * 2, strict=True)]
    rounds = []
    for seed in range(READY):
        flat = round_of_batches(seed)
        rounds.append([tuple(map(torch.stack, zip(*flat[k :: w.steps], strict=True))) for k in range(w.steps)])
    for batches in cycle(rounds):
        weights = [(W.mT.expand(w.cohort, -1, -1).clone(), b.expand(w.cohort, 1, -1).clone()) for W, b in start]
        for inputs, labels in batches:
            step_by_hand(weights, inputs, labels)
        [(W.mean(0), b.mean(0)) for W, b in weights]
        clock.tick()


def step_by_hand(weights: list[tuple[Tensor, Tensor]], inputs: Tensor, labels: Tensor) -> None:
    """One step of SGD of all clients; inputs [S, B, n], weights [S, n, m], biases [S, 1, m]."""
    seen = [inputs]
    for i, (W, b) in enumerate(weights):
        z = torch.baddbmm(b, seen[-1], W)
        seen.append(z.relu_() if i < len(weights) - 1 else z)
    error = seen.pop().softmax(-1)
    error.scatter_add_(-1, labels.unsqueeze(-1), error.new_full((*labels.shape, 1), -1.0)).div_(labels.shape[1])
    for i in reversed(range(len(weights))):
        W, b = weights[i]
        below = torch.bmm(error, W.mT).mul_(seen[i] > 0) if i else error
        W.baddbmm_(seen[i].mT, error, alpha=-LR)
        b.sub_(error.sum(1, keepdim=True), alpha=LR)
        error = below


{"one": one, "spread": spread, "batched": batched}[how]()
