"""Studies of Python objects: a model, a federation or functions that have no name in a study file.

The study's file holds a name made from a digest of the object. So a study that is called again with the same directory
finds its runs, and refuses a directory whose runs had another model or other data.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedkeel.core.algorithm import Algorithm
from fedkeel.runs import from_config
from fedkeel.runs.config import PYTHON, SETTINGS, RunConfig
from fedkeel.study.file import STUDY_KEYS
from fedkeel.wording import value_text

if TYPE_CHECKING:
    from torch import nn

    from fedkeel.data.federation import Federation


GIVEN = "given"  # the split of a federation that is a Python object


@dataclass(frozen=True)
class PythonObjects:
    """What a study file can only name."""

    fed: Federation | None = None  # None: the file names the data
    model: nn.Module | Callable[[], nn.Module] | None = None  # None: the file names the model
    keywords: dict[str, Any] = field(default_factory=dict)  # other arguments of `fk.train`: loss, step, callbacks, ...


NAMES_ONLY = PythonObjects()


def separated(model: Any, fed: Any, settings: Mapping[str, Any]) -> tuple[dict[str, Any], PythonObjects]:
    """(what a study file can hold, the rest). model and fed: objects or names."""
    from torch import nn

    from fedkeel.data.federation import Dataset, Federation

    if isinstance(fed, Dataset):
        raise ValueError('fed: it is not split among clients yet; for example data.split("iid", clients=10)')
    if not isinstance(fed, Federation | str):
        raise ValueError(f"fed: expected a Federation or the name of a data set, not {type(fed).__name__}")
    if not isinstance(model, nn.Module | str) and not callable(model):
        raise ValueError(
            f"model: expected a torch.nn.Module, a function that makes one or a name, not {type(model).__name__}"
        )
    file, keywords = _plain_and_other(settings)
    if keywords and isinstance(model, str):  # so that the digest in the model's name tells other functions apart
        named = {key: z for key, z in file.items() if key in SETTINGS} | {"model": model}
        named |= {"data": fed} if isinstance(fed, str) else {"clients": len(fed)}
        model, fed = from_config.task(RunConfig(**named), None if isinstance(fed, str) else fed)
    if isinstance(fed, Federation):
        file |= {"data": data_name(fed), "split": GIVEN, "clients": len(fed)}
    else:
        file["data"] = fed
    file["model"] = model if isinstance(model, str) else model_name(model, keywords)
    objects = PythonObjects(None if isinstance(fed, str) else fed, None if isinstance(model, str) else model, keywords)
    return file, objects


def _plain_and_other(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings that a file can hold, arguments of `fk.train` that it cannot hold)."""
    from fedkeel.engine.train import train

    plain: dict[str, Any] = {}
    other: dict[str, Any] = {}
    taken = inspect.signature(train).parameters
    for key, value in settings.items():
        if key in STUDY_KEYS:
            plain[key] = value
        elif key in SETTINGS and _is_plain(value):
            plain |= {} if value is None else {key: list(value) if isinstance(value, tuple) else value}
        elif key in taken and value is not None:
            other[key] = value
            if key == "metrics":  # the names among them decide which columns the study has
                plain[key] = [z for z in value if isinstance(z, str)]
        elif key not in taken:
            plain[key] = value  # `Study.read` refuses it, and names the nearest setting
    return plain, other


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(z, bool | int | float | str) for z in value)
    return value is None or isinstance(value, bool | int | float | str)


# Names of objects ---


def data_name(fed: Federation) -> str:
    return f"{PYTHON}{fed.origin.get('data', 'federation')}-{fed.fingerprint()[:8]}"


def model_name(model: nn.Module | Callable[[], nn.Module], keywords: Mapping[str, Any]) -> str:
    """The class of the model and a digest: of its layers, of its weights if it is a module, and of the functions."""
    from torch import nn

    from fedkeel.engine.objective import seeded

    made = model if isinstance(model, nn.Module) else seeded(model, seed=0)
    if not isinstance(made, nn.Module):
        raise ValueError(f"model: the function returned a {type(made).__name__}, not a torch.nn.Module")
    digest = hashlib.blake2b(repr(made).encode(), digest_size=4)
    for name, z in made.state_dict().items():
        digest.update(f"{name} {z.dtype} {tuple(z.shape)}".encode())
        if made is model:
            digest.update(repr(z.detach().double().sum().item()).encode())
    for key, value in sorted(keywords.items()):
        digest.update(f"{key} {_identity(value)}".encode())
    return f"{PYTHON}{type(made).__name__}-{digest.hexdigest()}"


def _identity(value: Any) -> str:
    """A text that stays the same in another process. Functions count by their code, other objects by what they print."""
    if isinstance(value, list | tuple):
        return ",".join(map(_identity, value))
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{value.__qualname__} {code.co_code.hex()} {code.co_names} {[z for z in code.co_consts if _is_plain(z)]}"
    text = repr(value)
    return f"{type(value).__qualname__}" if " at 0x" in text else text


# Methods ---


def method_tables(methods: Any) -> dict[str, dict[str, Any]]:
    """The tables [methods.LABEL] of a study file. methods: names and fk.algorithm(...), or {label: table}."""
    if isinstance(methods, str | Algorithm):
        methods = [methods]
    if isinstance(methods, Mapping):
        named = {
            label: {"algorithm": z.name} for label, z in methods.items() if isinstance(z, Algorithm) and z.name != label
        }
        return {label: named.get(label, {}) | _table(z) for label, z in methods.items()}
    tables: dict[str, dict[str, Any]] = {}
    names = [one.name if isinstance(one, Algorithm) else one for one in methods]
    for name, one in zip(names, methods, strict=True):
        table, label = _table(one), name
        if names.count(name) > 1:  # The same method twice: its settings tell the two apart.
            label = " ".join([name, *(f"{key}={value_text(value, key)}" for key, value in table.items())])
        if label in tables:
            raise ValueError(f"methods: {label} is there twice")
        tables[label] = table | ({"algorithm": name} if label != name else {})
    return tables


def _table(method: Any) -> dict[str, Any]:
    """The hyper-parameters of a method that differ from their defaults, as a table of a study file."""
    from fedkeel.core.algorithm import defaults

    if isinstance(method, Mapping):
        return dict(method)
    if isinstance(method, str):
        return {}
    if not isinstance(method, Algorithm):
        raise ValueError(f"methods: expected names or fk.algorithm(...), not {type(method).__name__}")
    usual = defaults(type(method))
    values = {key: getattr(method, key) for key in method.__dataclass_fields__}  # type: ignore[attr-defined]
    return {key: z for key, z in values.items() if z is not None and (key not in usual or usual[key] != z)}
