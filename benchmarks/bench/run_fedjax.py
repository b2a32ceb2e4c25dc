"""FedJAX: its fed_avg with its jit, batches by its ClientDataset, on all cores.  run_fedjax.py WORKLOAD"""

from __future__ import annotations

import sys

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from clock import WARM_UP, Clock
from fedjax.algorithms import fed_avg
from workloads import LR, WORKLOADS, arrays

name = sys.argv[1]
w, (x, y) = WORKLOADS[name], arrays(name)
clock = Clock(1 if w.rounds == 1 else WARM_UP)


def start() -> list[dict]:
    """The dense network of the workload; initial values as torch's, although only the time matters."""
    rng = np.random.default_rng(0)
    pairs = zip(w.widths, w.widths[1:], strict=False)
    bound = [(a, b, a**-0.5) for a, b in pairs]
    return [{"w": jnp.asarray(rng.uniform(-c, c, (a, b)), jnp.float32), "b": jnp.zeros(b)} for a, b, c in bound]


def loss(params: list[dict], batch: dict) -> jax.Array:
    z = batch["x"]
    for layer in params[:-1]:
        z = jax.nn.relu(z @ layer["w"] + layer["b"])
    scores = jax.nn.log_softmax(z @ params[-1]["w"] + params[-1]["b"])
    return -jnp.take_along_axis(scores, batch["y"][:, None], axis=1).mean()


def gradient(params: list[dict], batch: dict, rng: jax.Array) -> list[dict]:
    return jax.grad(loss)(params, batch)


def client(i: int) -> fedjax.ClientDataset:
    rows = slice(i * w.samples, (i + 1) * w.samples)
    return fedjax.ClientDataset({"x": x[rows], "y": y[rows]})


batches = fedjax.ShuffleRepeatBatchHParams(batch_size=w.batch, num_steps=w.steps, num_epochs=None)
algorithm = fed_avg.federated_averaging(gradient, fedjax.optimizers.sgd(LR), fedjax.optimizers.sgd(1.0), batches)
clients = {i: client(i) for i in range(w.clients)}
rng = np.random.default_rng(0)
key = jax.random.PRNGKey(0)
state = algorithm.init(start())
while True:
    ids = rng.choice(w.clients, w.cohort, replace=False)
    cohort = [(str(i).encode(), clients[int(i)], key) for i in ids]
    state, _ = algorithm.apply(state, cohort)
    jax.block_until_ready(state.params)
    clock.tick()
