"""The documentation site builds without a warning, is light, and names everything that is public."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedkeel as fk

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="needs the extra [docs]")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    # Not --quiet: mkdocs would not count the warnings that it hides.
    done = subprocess.run(build, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_is_light_and_loads_nothing_from_other_servers(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(fk.algorithms())
    for page in pages:
        assert page.stat().st_size < 500_000, page
        loaded = re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?://[^"]*)"', page.read_text())
        assert not loaded, (page, loaded)


@pytest.mark.parametrize("name", fk.algorithms())
def test_every_method_has_a_page_with_all_its_parts(site: Path, name: str) -> None:
    text = (site / f"methods/{name}.html").read_text()
    for part in ("The update", "Who keeps what", "Hyper-parameters", "Cost", "Conditions", "How it is verified", "The code"):
        assert f">{part}<" in text, part
    assert 'class="formulas"' in text
    assert "def</span>" in text  # its code


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = (site / "api.html").read_text()
    assert not [name for name in fk.__all__ if f"fk.{name}" not in text]
