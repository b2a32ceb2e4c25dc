"""What a site allows, in a TOML file that the site's owner writes. The server cannot change it.

    methods = ["fedavg", "scaffold"]     # no other method is run
    models = ["mlp", "ours.nets:make"]   # no other model by name; names with ":" are code
    code = ["ours.data:load"]            # data and methods of the form package.module:name
    least_batch_size = 8                 # no step sees fewer samples; without this line, at least 2
    most_steps = 200                     # local steps of a round
    most_rounds = 500

The node-config of the SuperNode names the file: policy="/etc/fedkeel/policy.toml".
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedkeel.deploy.errors import InvalidMessage, WrongNodeConfig
from fedkeel.engine.seeding import batch_sizes
from fedkeel.errors import nearest
from fedkeel.files import read_toml


class PolicyRefused(InvalidMessage):
    """The policy of this site does not allow what the server asks for."""


@dataclass(frozen=True)
class SitePolicy:
    methods: tuple[str, ...] | None = None  # None: all
    models: tuple[str, ...] | None = None
    code: tuple[str, ...] = ()
    least_batch_size: int = 2
    most_steps: int | None = None
    most_rounds: int | None = None

    def check_names(self, config: Mapping[str, Any]) -> None:
        """Raises if an app whose parts have names wants a part that is not allowed. Call it before anything is imported.

        config: with the keys model, data and algorithm.
        """
        if self.models is not None and config["model"] not in self.models:
            raise PolicyRefused(f"this site does not allow the model {config['model'][:60]!r}")
        for key in ("model", "data", "algorithm"):
            name = str(config[key])
            if ":" in name and not name.startswith("hf:") and name not in (*self.code, *(self.models or ())):
                raise PolicyRefused(f"this site does not allow {key} = {name[:60]!r}: it is code that is not in the list")

    def check_work(self, method: str, t: int, steps: int, batch_size: int | None, samples: int) -> None:
        """Raises if one exchange asks for more than the site allows. samples: of this site."""
        if self.methods is not None and method not in self.methods:
            raise PolicyRefused(f"this site does not allow the method {method[:60]!r}")
        if self.most_steps is not None and steps > self.most_steps:
            raise PolicyRefused(f"this site allows {self.most_steps} local steps, not {steps}")
        if self.most_rounds is not None and t >= self.most_rounds:
            raise PolicyRefused(f"this site allows {self.most_rounds} rounds")
        sizes = [samples] if batch_size is None else batch_sizes(samples, steps, batch_size)
        if min(sizes) < self.least_batch_size:
            raise PolicyRefused(f"this site allows batches of {self.least_batch_size} samples or more; one would be smaller")


@functools.lru_cache(maxsize=8)
def read_policy(path: str) -> SitePolicy:
    """The policy in a file. A wrong file is an error, so that a spelling mistake does not allow everything."""
    try:
        found = read_toml(path)
        known = [field.name for field in dataclasses.fields(SitePolicy)]
        for key, value in found.items():
            if key not in known:
                raise ValueError(f"unknown key {key!r}{nearest(key, known)}")
            names = key in ("methods", "models", "code")
            right = isinstance(value, list) and all(isinstance(z, str) for z in value) if names else type(value) is int
            if not right or (not names and value < 1):
                raise ValueError(f"{key} = {value!r} must be {'a list of names' if names else 'a whole number >= 1'}")
        values: dict[str, Any] = {key: tuple(z) if isinstance(z, list) else z for key, z in found.items()}
        return SitePolicy(**values)
    except ValueError as error:
        raise WrongNodeConfig(f"node-config: the file `policy` is wrong: {error}") from None


def policy_of(node_config: Mapping[str, Any]) -> SitePolicy | None:
    """The policy of the site with this node-config; None if it has none."""
    path = node_config.get("policy")
    return None if path is None else read_policy(str(path))
