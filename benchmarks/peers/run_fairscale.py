"""FairScale: SlowMoDistributedDataParallel, one gloo process per client on this machine, float32 as it demands."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from fairscale.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from problem import EQUAL_STEPS, ROUNDS, SIZES, Problem, load, serve
from torch import nn
from torch.multiprocessing import spawn
from torch_side import Net, read, tensors

LR, DECAY = 0.1, 0.9


def client(rank: int, home: str, place: str, early: bool, lr_decay: float) -> None:
    """One client: K local steps, then FairScale's slow momentum step, which all take part in."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda *_: None  # FairScale waits for a GPU even if there is none
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=len(SIZES))
    p = load(Path(home) / "equal.npz")
    net = Net(p.x0, torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    model = SlowMoDistributedDataParallel(
        net, nprocs_per_node=1, slowmo_momentum=0.6, slowmo_lr=0.8, slowmo_frequency=EQUAL_STEPS,
        localsgd_frequency=EQUAL_STEPS,
    )  # fmt: skip
    if early:
        model._init_global_momentum_buffers(optimizer)
    seen = []
    for t in range(ROUNDS):
        optimizer.param_groups[0]["lr"] = LR * lr_decay**t
        for batch in p.batches(t, rank):
            x, y = tensors(batch, torch.float32)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            model.perform_slowmo(optimizer)
        seen.append(read(net))
    if rank == 0:
        np.save(f"{place}/weights.npy", np.stack(seen))
    dist.destroy_process_group()


def run(p: Problem, early: bool, lr_decay: float) -> list[np.ndarray]:
    with tempfile.TemporaryDirectory() as place:
        spawn(client, (sys.argv[1], place, early, lr_decay), nprocs=len(SIZES))
        return list(np.load(f"{place}/weights.npy"))


if __name__ == "__main__":  # the processes import this file
    serve(
        {
            "equal slowmo": lambda p: run(p, early=True, lr_decay=DECAY),
            "equal slowmo shipped": lambda p: run(p, early=False, lr_decay=DECAY),
        }
    )
