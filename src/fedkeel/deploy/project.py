"""Writes a Flower project for a run: `pyproject.toml` with the run's settings, and a file with the two apps.

Flower gives the settings, `[tool.flwr.app.config]`, to the server and to every client. You can change them
for one run: `flwr run -c 'rounds=20'`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkeel.deploy.flower_config import read_source, to_flower
from fedkeel.files import write_atomically
from fedkeel.runs.config import RunConfig

APP = '''"""The apps that pyproject.toml names. The settings of the run are there, in [tool.flwr.app.config].

To use your own data, write client_app(model, load_data, algorithm) and server_app(...) of fedkeel.deploy.flower instead.
"""

from fedkeel.deploy.config_app import client_from_config, server_from_config

client = client_from_config()
server = server_from_config()
'''


def init(directory: Path, source: Path | RunConfig) -> list[Path]:
    """Writes a project for a run: its directory, a study file or its config. Returns the files."""
    import tomli_w

    config = source if isinstance(source, RunConfig) else read_source(source)
    files = [directory / "pyproject.toml", directory / "fedkeel_app.py"]
    for path in files:
        if path.exists():
            raise ValueError(f"deploy: {path} exists already; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    name = "".join(z if z.isalnum() else "-" for z in directory.resolve().name.lower()).strip("-") or "app"
    project = {
        "project": {
            "name": f"fedkeel-{name}",
            "version": "1.0.0",
            "description": f"{config.algorithm} on {config.data}, {config.clients} clients",
            "license": {"text": "as you choose"},
            # Flower would install another build of torch, so a node's owner installs fedkeel and torch.
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedkeel",
                    "components": {"serverapp": "fedkeel_app:server", "clientapp": "fedkeel_app:client"},
                    "config": to_flower(config, (directory / "run").resolve()),
                }
            }
        },
    }
    write_atomically(files[0], tomli_w.dumps(project).encode())
    write_atomically(files[1], APP.encode())
    return files


def __getattr__(name: str) -> Any:
    """Projects written by fedkeel 0.1.0 call `project.client_app()` and `project.server_app()`."""
    from fedkeel.deploy import config_app

    old_names = {"client_app": config_app.client_from_config, "server_app": config_app.server_from_config}
    if name in old_names:
        return old_names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
