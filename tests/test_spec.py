"""docs/methods.md describes every method, and the hyper-parameters in its tables are those of the code."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.core.algorithm import lookup

TEXT = (Path(__file__).parents[1] / "docs/methods.md").read_text()
# A section is a heading that is a registered name, up to the next heading.
SECTIONS = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", TEXT, re.S | re.M))
ROW = re.compile(r"^\| `(\w+)` \| (\S+) \|", re.M)


def shown(value: object) -> str:
    """A default as the tables print it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else str(value)


@pytest.mark.parametrize("name", fk.algorithms())
def test_every_method_has_a_section_with_its_hyperparameters(name: str) -> None:
    assert name in SECTIONS
    fields = {field.name: shown(field.default) for field in dataclasses.fields(lookup(name))}  # type: ignore[arg-type]
    assert dict(ROW.findall(SECTIONS[name])) == fields


def test_no_section_is_about_an_unknown_method() -> None:
    assert set(SECTIONS) <= set(fk.algorithms())


def test_links_lead_to_headings() -> None:
    headings = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", TEXT, re.M)}
    assert set(re.findall(r"\]\(#([^)]*)\)", TEXT)) <= headings
