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
from fedkeel.deploy.errors import error_reply
from fedkeel.deploy.flower_config import checked_from_flower, from_flower, model_and_data, train_settings
from fedkeel.deploy.limits import TIMEOUT
from fedkeel.deploy.policy import policy_of
from fedkeel.deploy.server import serve


def client_from_config() -> ClientApp:
    """The app that a SuperNode runs."""
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return _answer("hello", message, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _answer("train", message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _answer("evaluate", message, context)

    return app


def server_from_config() -> ServerApp:
    """The app that the SuperLink runs."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _serve(grid, dict(context.run_config))

    return app


def _answer(kind: str, message: Message, context: Context) -> Message:
    """The handler's answer. If no handler can be made, the server learns no more than the class of the error."""
    try:
        handler = _handler(context)
    except (Exception, SystemExit) as error:
        return error_reply(message, error)
    answer: Message = getattr(handler, kind)(message, context)
    return answer


def _handler(context: Context) -> MessageHandler:
    """The policy is checked first, because making a handler imports what the config names."""
    if (policy := policy_of(context.node_config)) is not None:
        policy.check_names(context.run_config)
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
        norm_bound=float(flat.get("norm_bound") or 0) or None,
        site_keys=str(flat.get("site_keys") or "") or None,
        sign_with=str(flat.get("sign_with") or "") or None,
        config=config.as_dict() | {"engine": "flower"},
        **train_settings(config),
    )
