"""How a table or a folder of pictures became numbers: class names, columns, words, means and deviations.

A schema is made once, from the training data. Other files are then read in the same way, for example those of other sites.
Otherwise a site that only has the class "ill" would call it class 0, and every site would standardise by its own means.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel.errors import nearest
from fedkeel.files import write_atomically

FILE = "schema.json"  # its name in the directory of a run
FORMAT = "fedkeel-schema-1"


@dataclass(frozen=True)
class Column:
    """A column of inputs. A numeric one has mean and deviation, a text column has words."""

    name: str
    mean: float | None = None
    std: float | None = None
    words: tuple[str, ...] | None = None
    fill: float | None = None  # the number that takes the place of a missing cell; None: such a cell is refused

    def __post_init__(self) -> None:
        if (self.words is None) != (self.mean is not None and self.std is not None):
            raise ValueError(f"schema: the column {self.name!r} needs either mean and std, or words")


@dataclass(frozen=True)
class Schema:
    """How data were read. `save` writes it as JSON, `load_schema` reads it."""

    classes: tuple[str, ...] | None  # the name of every class, in the order of their numbers; None: numbers are predicted
    label: str | None = None  # tables: the column of classes
    key: str | None = None  # tables: the column of owners
    columns: tuple[Column, ...] = ()  # tables: the inputs
    mean: tuple[float, ...] = ()  # pictures: of every channel, for pixels in [0, 1]
    std: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()  # pictures: (C, H, W)

    def as_json(self) -> str:
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1, ensure_ascii=False)

    def save(self, path: str | Path) -> None:
        write_atomically(Path(path).expanduser(), self.as_json().encode())


def load_schema(given: Schema | str | Path) -> Schema:
    """A schema, or the one in a JSON file, or the one in the directory of a run."""
    if isinstance(given, Schema):
        return given
    if not isinstance(given, str | Path):
        raise ValueError(f"schema: expected a Schema, a JSON file or the directory of a run, not {type(given).__name__}")
    path = Path(given).expanduser()
    path = path / FILE if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"schema: cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"schema: {path} is not JSON: {' '.join(str(error).split())}") from None
    return _from_json(values, path)


def _from_json(values: Any, path: Path) -> Schema:
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ValueError(f"schema: {path} is not a schema of fedkeel ({FORMAT})")
    known = [one.name for one in dataclasses.fields(Schema)]
    for name in values:
        if name not in known:
            raise ValueError(f"schema: {path} has an unknown entry {name!r}{nearest(name, known)}")
    try:
        made: dict[str, Any] = {name: tuple(z) if isinstance(z, list) else z for name, z in values.items()}
        made["columns"] = tuple(
            Column(**(column | {"words": None if column.get("words") is None else tuple(column["words"])}))
            for column in values.get("columns", ())
        )
        return Schema(**made)
    except TypeError as error:
        raise ValueError(f"schema: {path} is damaged: {' '.join(str(error).split())}") from None
