"""Every Python block and every command of the documentation runs as it stands.

The blocks of a page run one after the other in one process, in an empty directory. A line `<!-- not run: REASON -->`
before a block says why it cannot run here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(<!-- not run: [^\n]*-->\n+)?^```(python|sh)\n(.*?)^```", re.S | re.M)
PAGES = {path.name: BLOCK.findall(path.read_text()) for path in sorted((ROOT / "docs").glob("*.md"))}
RUN = {page: [(kind, code) for skipped, kind, code in blocks if not skipped] for page, blocks in PAGES.items()}


def script(blocks: list[tuple[str, str]]) -> str:
    """Python blocks as they are, commands by the shell."""
    lines = ["import matplotlib, subprocess", "matplotlib.use('agg')"]
    for kind, code in blocks:
        lines.append(
            code if kind == "python" else f"subprocess.run({code!r}, shell=True, check=True, executable='/bin/bash')"
        )
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, blocks in RUN.items() if blocks])
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PATH": path}
    command = [sys.executable, "-c", script(RUN[page])]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_few_blocks_are_not_run() -> None:
    skipped = [(page, block[0]) for page, blocks in PAGES.items() for block in blocks if block[0]]
    assert len(skipped) <= 12, skipped
