"""Any registered method as a Flower app: `client_app` for the SuperNodes, `server_app` for the SuperLink.

client = client_app(model, load_data, "scaffold")
server = server_app(model, "scaffold", clients=4, rounds=100, test=load_test, out="run")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

try:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    raise ImportError("fedkeel.deploy needs the package flwr: pip install 'fedkeel[flower]'") from None

from fedkeel.core.algorithm import Algorithm, make
from fedkeel.data.federation import Federation
from fedkeel.deploy.client import MessageHandler
from fedkeel.deploy.flower_mods import adapted_mods, hides_uploads
from fedkeel.deploy.limits import LARGEST, MOST_SAMPLES, TIMEOUT
from fedkeel.deploy.server import serve

Pair = tuple[Any, Any]
Model = nn.Module | Callable[[], nn.Module]


def client_app(
    model: Model,
    load_data: Callable[[Context], Pair | Federation],
    algorithm: str | Algorithm,
    *,
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    step: Callable[[nn.Module, Any], Tensor] | None = None,
    device: str = "auto",
    mods: Sequence[Any] = (),
) -> ClientApp:
    """The app that a SuperNode runs. `partition-id` in its node-config says which client it is: 0 to N - 1.

    model: the function that makes the model. Client and server must use the same one.
    load_data: load_data(context) -> the data of this client: a pair (x, y), a Dataset such as `from_csv(..., schema=)`,
        or a data set of torch or of Hugging Face. `context.node_config` holds the SuperNode's node-config.
    algorithm: a name or fedkeel.algorithm(...). The server decides the hyper-parameters.
    step: step(model, batch) -> loss, instead of `loss`, as in `fedkeel.train`. The server needs the same one.
    mods: Flower's modifiers, such as LocalDpMod. A modifier that the method does not allow is refused (docs/deploy.md).
    """
    method = make(algorithm) if isinstance(algorithm, str) else algorithm
    adapted = adapted_mods(method, mods)
    handler = MessageHandler(model, load_data, method, loss, device, sends_loss=not hides_uploads(mods), step=step)
    app = ClientApp()
    app.query("hello")(handler.hello)
    app.train(mods=adapted)(handler.train)
    app.evaluate()(handler.evaluate)
    return app


def server_app(
    model: Model,
    algorithm: str | Algorithm,
    *,
    clients: int,
    test: Pair | Federation | Callable[[], Pair | Federation] | None = None,
    out: str | Path | None = None,
    timeout: float = TIMEOUT,
    patience: float = TIMEOUT,
    largest: float = LARGEST,
    most_samples: int = MOST_SAMPLES,
    norm_bound: float | None = None,
    site_keys: str | Path | None = None,
    sign_with: str | Path | None = None,
    **settings: Any,
) -> ServerApp:
    """The app that the SuperLink runs: the round loop of `fedkeel.train`, with clients on SuperNodes.

    clients: N. The run begins when all N clients are connected.
    test: data for evaluation on the server, or a function that loads them.
    out: the directory of the run. If it holds a checkpoint, the run continues from there.
    timeout: seconds that the clients of a round have for their reply.
    patience: seconds to wait for missing clients: for all before the first round, for `min_clients` in a round.
    largest: an upload that contains a larger number is refused.
    most_samples: a client that says that it has more samples is not used.
    norm_bound: uploads longer than this many times the median of their round are refused, such as 10; off by default.
    site_keys: a folder with the public key of every client, 0.pub, 1.pub and so on. Then each SuperNode needs `key` in its
        node-config, the file of its private key, and no other node can take its place.
    sign_with: the server's private key. It signs the finished run; `fedkeel verify` checks it.
    settings: those of `fedkeel.train`, such as rounds, cohort, local_steps, batch_size, weights, seed, min_clients.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(
            grid,
            model,
            algorithm,
            clients=clients,
            test=test,
            out=out,
            timeout=timeout,
            patience=patience,
            largest=largest,
            most_samples=most_samples,
            norm_bound=norm_bound,
            site_keys=site_keys,
            sign_with=sign_with,
            **settings,
        )

    return app
