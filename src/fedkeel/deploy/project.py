"""A Flower app made from a run's config: two files, and the two apps that they name.

The run's settings become `[tool.flwr.app.config]`, which Flower gives to the server and to every client, and which
`flwr run -c 'rounds=20'` can change.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.runs.config import RunConfig, read, resolve
from fedkeel.runs.saved_config import saved_config

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fedkeel.deploy.client import Node

TIMEOUT = 600.0  # seconds for clients to answer, and to wait for missing ones
OWN = ("out", "timeout", "patience")  # keys that the server alone reads
# Keys of a simulation that mean nothing here: who runs the clients, and measurements that need their data.
ELSEWHERE = ("engine", "workers", "timeout", "device", "ray_address", "metrics")
APP = '''"""The apps that pyproject.toml names; the run's settings are there, in [tool.flwr.app.config].

For data of your own: client_app(model, load_data, algorithm) and server_app(...) of fedkeel.deploy.flower instead.
"""

from fedkeel.deploy import project

client = project.client_app()
server = project.server_app()
'''


def init(directory: Path, source: Path) -> list[Path]:
    """Writes an app for the run in `source`, a run's directory or a study file; returns the files."""
    import tomli_w

    from fedkeel.files import write_atomically

    config = resolve(saved_config(source) if source.is_dir() else read(source))
    files = [directory / "pyproject.toml", directory / "fedkeel_app.py"]
    for path in files:
        if path.exists():
            raise ValueError(f"deploy: {path} exists already; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    settings = {key: z for key, z in config.as_dict().items() if key not in ELSEWHERE}
    settings |= {"out": str((directory / "run").resolve()), "timeout": TIMEOUT, "patience": TIMEOUT}
    name = "".join(z if z.isalnum() else "-" for z in directory.resolve().name.lower()).strip("-") or "app"
    project = {
        "project": {
            "name": f"fedkeel-{name}",
            "version": "1.0.0",
            "description": f"{config.algorithm} on {config.data}, {config.clients} clients",
            "license": {"text": "as you choose"},
            # fedkeel and torch are installed on every node by its owner: Flower would fetch another build of torch.
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedkeel",
                    "components": {"serverapp": "fedkeel_app:server", "clientapp": "fedkeel_app:client"},
                    "config": settings,
                }
            }
        },
    }
    write_atomically(files[0], tomli_w.dumps(project).encode())
    write_atomically(files[1], APP.encode())
    return files


def config_of(run_config: Mapping[str, Any]) -> RunConfig:
    """The run that Flower's flat config describes."""
    values: dict[str, Any] = {"hyperparameters": {}}
    for key, value in run_config.items():
        if key.startswith("hyperparameters."):
            values["hyperparameters"][key.removeprefix("hyperparameters.")] = value
        elif key not in OWN:
            values[key] = value
    return RunConfig(**values)


def client_app() -> ClientApp:
    """The client of a run whose model, data and method have names."""
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query("hello")(lambda message, context: _node(context).hello(message, context))
    app.train()(lambda message, context: _node(context).train(message, context))
    return app


def server_app() -> ServerApp:
    """The server of such a run."""
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(_serve)
    return app


def _node(context: Context) -> Node:
    return _node_for(json.dumps(dict(context.run_config), sort_keys=True))


@functools.lru_cache(maxsize=1)
def _node_for(run_config: str) -> Node:
    """Made once in a process: in a simulation it serves many clients."""
    from fedkeel.deploy.client import Node
    from fedkeel.runs.from_config import task

    config = config_of(json.loads(run_config))
    model, fed = task(config)
    return Node(model, lambda context: fed, config.algorithm)


def _serve(grid: Grid, context: Context) -> None:
    from fedkeel.core.registry import make
    from fedkeel.deploy.flower import LARGEST, serve
    from fedkeel.runs.from_config import task

    config = resolve(config_of(context.run_config))
    own = {key: context.run_config.get(key) for key in OWN}
    model, fed = task(config)
    settings = {key: z for key, z in config.keywords().items() if key not in ELSEWHERE}
    serve(
        grid,
        model,
        make(config.algorithm, **config.hyperparameters),
        config.clients,
        fed,
        Path(str(own["out"])) if own["out"] else None,
        float(own["timeout"] or TIMEOUT),
        float(own["patience"] or TIMEOUT),
        LARGEST,
        config=config.as_dict() | {"engine": "flower"},
        **settings,
    )
