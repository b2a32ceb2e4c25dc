"""Every Python block and every command of the documentation runs as it stands.

The blocks of a page run one after the other in one process. They find what the pages take for granted: `fk`, a federation
`fed`, a `model`, and two tables. A line `<!-- not run: REASON -->` before a block says why it cannot run here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.cli.app import main
from fedkeel.core.algorithm import lookup

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools/site"))
from method_page import example  # noqa: E402

BLOCK = re.compile(r"(<!-- not run: [^\n]*-->\n+)?^```(python|sh)\n(.*?)^```", re.S | re.M)
PAGES = {path.name: BLOCK.findall(path.read_text()) for path in sorted((ROOT / "docs").glob("*.md"))}
RUN = {page: [(kind, code) for skipped, kind, code in blocks if not skipped] for page, blocks in PAGES.items()}


BEFORE = """
import matplotlib, subprocess
matplotlib.use('agg')
import fedkeel as fk
fed = fk.load("digits").split("dirichlet", clients=100, concentration=0.1, seed=0)
model = fk.model("mlp", fed)
"""
TABLE = "age,dose,hospital,outcome\n" + "".join(
    f"{20 + i},{i % 7},{'ab'[i % 2]},{'ill' if i % 3 else 'healthy'}\n" for i in range(40)
)


def script(blocks: list[tuple[str, str]]) -> str:
    """Python blocks as they are, commands by the shell."""
    lines = [BEFORE]
    for kind, code in blocks:
        lines.append(
            code if kind == "python" else f"subprocess.run({code!r}, shell=True, check=True, executable='/bin/bash')"
        )
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, blocks in RUN.items() if blocks])
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text(TABLE)
    (tmp_path / "site3.csv").write_text(TABLE)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PATH": path}
    command = [sys.executable, "-c", script(RUN[page])]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", fk.algorithms())
def test_the_command_of_a_method_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(example(lookup(name)).replace("--rounds 20", "--rounds 1"))[1:]
    with pytest.raises(SystemExit) as end:
        main([*words, "--engine", "sequential"])
    assert not end.value.code


def test_few_blocks_are_not_run() -> None:
    skipped = [(page, block[0]) for page, blocks in PAGES.items() for block in blocks if block[0]]
    assert len(skipped) <= 12, skipped
