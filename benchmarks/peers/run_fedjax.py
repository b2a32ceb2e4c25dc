"""FedJAX: fed_avg with several server optimizers, fed_prox, mime and mime_lite, in float64, on the given batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg, fed_prox, mime, mime_lite
from fedjax.core.client_datasets import EXAMPLE_MASK_KEY
from problem import BATCH, PARTIAL, Problem, flat, gradient, serve, split

jax.config.update("jax_enable_x64", True)
LR = 0.1


class Given:
    """A client's data set that returns the given batches; FedJAX's class would shuffle."""

    def __init__(self, p: Problem, t: int, i: int) -> None:
        self.p, self.t, self.i = p, t, i

    def __len__(self) -> int:
        return self.p.size(self.i)

    def shuffle_repeat_batch(self, hparams: Any) -> Iterator[dict[str, np.ndarray]]:
        return ({"x": x, "y": y} for x, y in self.p.batches(self.t, self.i))

    def padded_batch(self, hparams: Any) -> Iterator[dict[str, np.ndarray]]:
        x, y = self.p.data[self.i]
        for start in range(0, len(y), BATCH):
            part = slice(start, start + BATCH)
            yield {"x": x[part], "y": y[part], EXAMPLE_MASK_KEY: np.ones(len(y[part]), dtype=bool)}


def losses(params: dict[str, Any], batch: dict[str, Any], rng: Any = None) -> Any:
    """The loss of each example."""
    z = jnp.tanh(batch["x"] @ params["p0"].T + params["p1"])
    logits = jax.nn.log_softmax(z @ params["p2"].T + params["p3"])
    return -jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]


def mean_gradient(params: dict[str, Any], batch: dict[str, Any], rng: Any) -> Any:
    return jax.grad(lambda w: losses(w, batch).mean())(params)


def run(p: Problem, algorithm: Any, begin: Callable[[Any], Any] = lambda state: state) -> list[np.ndarray]:
    state, seen = begin(algorithm.init({f"p{j}": jnp.asarray(z) for j, z in enumerate(split(p.x0))})), []
    for t, ids in enumerate(PARTIAL):
        clients = [(str(i).encode(), Given(p, t, i), jax.random.PRNGKey(0)) for i in ids]
        state, _ = algorithm.apply(state, clients)
        seen.append(flat(state.params[f"p{j}"] for j in range(4)))
    return seen


def averaging(server: Any, client: Any = None) -> Any:
    return fed_avg.federated_averaging(mean_gradient, client or fedjax.optimizers.sgd(LR), server, None)


def without_correction(p: Problem) -> Callable[[Any], Any]:
    """Starts optax's Adam as fedkeel starts: no bias correction (a huge count), v = c^2 of the first cohort."""
    ids = PARTIAL[0]
    c = sum(q * gradient(p.x0, p.data[i]) for q, i in zip(p.weights(ids), ids, strict=True))

    def begin(state: Any) -> Any:
        adam, *rest = state.opt_state
        v = {f"p{j}": jnp.asarray(z) for j, z in enumerate(split(c**2))}
        return state.replace(opt_state=(adam._replace(count=jnp.asarray(2**31 - 2, jnp.int32), nu=v), *rest))

    return begin


SGD, MOMENTUM = fedjax.optimizers.sgd(LR), fedjax.optimizers.sgd(LR, momentum=0.8)
ADAM = fedjax.optimizers.adam(0.02, b1=0.8, b2=0.9, eps=0.01)
ADAM_SERVER = fedjax.optimizers.adam(0.1, b1=0.8, b2=0.9, eps=0.01)

serve(
    {
        "fedavg": lambda p: run(p, averaging(fedjax.optimizers.sgd(0.8))),
        "fedavgm": lambda p: run(p, averaging(fedjax.optimizers.sgd(0.7, momentum=0.6))),
        "fedadagrad": lambda p: run(p, averaging(fedjax.optimizers.adagrad(0.2, initial_accumulator_value=0.1, eps=0.0))),
        "fedadam": lambda p: run(p, averaging(ADAM_SERVER)),
        "fedprox": lambda p: run(p, fed_prox.fed_prox(losses, SGD, fedjax.optimizers.sgd(0.8), None, 0.5)),
        "mime sgd": lambda p: run(p, mime.mime(losses, SGD, None, None, 0.9)),
        "mime sgdm": lambda p: run(p, mime.mime(losses, MOMENTUM, None, None, 0.9)),
        "mime adam": lambda p: run(p, mime.mime(losses, ADAM, None, None, 0.9), without_correction(p)),
        "mime adam shipped": lambda p: run(p, mime.mime(losses, ADAM, None, None, 0.9)),
        "mimelite sgdm": lambda p: run(p, mime_lite.mime_lite(losses, MOMENTUM, None, None, 0.9)),
        "mimelite adam": lambda p: run(p, mime_lite.mime_lite(losses, ADAM, None, None, 0.9), without_correction(p)),
    }
)
