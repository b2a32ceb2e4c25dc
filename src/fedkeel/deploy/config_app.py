"""The two apps of a run whose model, data and method have names. They read everything from Flower's config.

`fedkeel deploy init` writes a project that uses them.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedkeel.core.algorithm import make
from fedkeel.deploy.client import MessageHandler
from fedkeel.deploy.flower_config import checked_from_flower, from_flower, model_and_data, train_settings
from fedkeel.deploy.limits import TIMEOUT
from fedkeel.deploy.server import serve


def client_from_config() -> ClientApp:
    """The app that a SuperNode runs."""
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return _handler(context).hello(message, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _handler(context).train(message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _handler(context).evaluate(message, context)

    return app


def server_from_config() -> ServerApp:
    """The app that the SuperLink runs."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _serve(grid, dict(context.run_config))

    return app


def _handler(context: Context) -> MessageHandler:
    return _handler_for(json.dumps(dict(context.run_config), sort_keys=True))


@functools.lru_cache(maxsize=1)
def _handler_for(flat: str) -> MessageHandler:
    """One handler per process: in Flower's simulation, it serves many clients."""
    config = from_flower(json.loads(flat))
    model, fed = model_and_data(config)
    return MessageHandler(model, lambda context: fed, config.algorithm)


def _serve(grid: Grid, flat: dict[str, Any]) -> None:
    config = checked_from_flower(flat)
    model, fed = model_and_data(config)
    serve(
        grid,
        model,
        make(config.algorithm, **config.hyperparameters),
        clients=config.clients,
        test=fed,
        out=Path(str(flat["out"])) if flat.get("out") else None,
        timeout=float(flat.get("timeout") or TIMEOUT),
        patience=float(flat.get("patience") or TIMEOUT),
        config=config.as_dict() | {"engine": "flower"},
        **train_settings(config),
    )
