"""Draws which layer of the package imports which: docs/map.svg. An arrow that points up is an error.

    python benchmarks/map.py [--out docs/map.svg]

A layer is a folder or a loose module of src/fedkeel. The order from top to bottom is the table of tests/test_layers.py.
The number on an arrow counts the import statements behind it, those inside functions included.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/fedkeel"
# What each layer holds, in a few words; the drawing shows it under the name.
CONTENTS = {
    "cli": "commands, options, terminal tables",
    "study": "comparisons, sweeps, recipes, reports",
    "deploy": "Flower apps, messages, privacy",
    "runs": "named data and models, configuration",
    "engine": "training loop, runners, state, metrics",
    "models": "networks, pretrained models",
    "data": "federations, splits, readers",
    "methods": "one file per method",
    "rules": "maths that methods share",
    "core": "what a method is written against",
    "files": "atomic files",
    "wording": "numbers as text",
    "errors": "error classes",
}
# Layers side by side are in one row. A layer that is missing here gets a row of its own at the bottom.
ROWS = [
    ["cli"],
    ["study", "deploy"],
    ["runs"],
    ["engine", "methods"],
    ["models", "rules"],
    ["data", "core"],
    ["files", "wording", "errors"],
]
ENTRIES = ("__init__", "__main__")  # the public names, and `python -m fedkeel`: above everything, not drawn
WIDTH, BOX, HEIGHT, STEP, TOP = 980, 250, 52, 118, 76


def layer_of(file: Path) -> str:
    return file.relative_to(SOURCE).with_suffix("").parts[0]


def imports() -> Counter[tuple[str, str]]:
    """(importing layer, imported layer) -> number of import statements."""
    layers = {layer_of(file) for file in SOURCE.rglob("*.py")}
    arrows: Counter[tuple[str, str]] = Counter()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names: set[str] = set()
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            for layer in {name.split(".")[1] for name in names if name.startswith("fedkeel.")} & layers:
                if layer != layer_of(file):
                    arrows[layer_of(file), layer] += 1
    return arrows


def order() -> list[str]:
    """The layers from top to bottom, as tests/test_layers.py lists them."""
    tree = ast.parse((ROOT / "tests/test_layers.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "MAY" and isinstance(node.value, ast.Dict):
            return [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
    raise SystemExit("map: tests/test_layers.py has no table MAY")


def places(layers: list[str]) -> dict[str, tuple[float, float]]:
    """Layer -> centre of its box."""
    rows = [[name for name in row if name in layers] for row in ROWS]
    rows += [[name] for name in layers if name not in {name for row in ROWS for name in row}]
    at = {}
    for y, row in enumerate(row for row in rows if row):
        for x, name in enumerate(row):
            at[name] = (WIDTH * (x + 0.5) / len(row) + SHIFT.get(name, 0), TOP + HEIGHT / 2 + STEP * y)
    return at


SHIFT = {"cli": 60, "runs": -70, "study": -25, "deploy": 40}  # so that long arrows do not run through boxes


def drawing(arrows: Counter[tuple[str, str]], layers: list[str]) -> str:
    at = places(layers)
    height = max(y for _, y in at.values()) + HEIGHT / 2 + 24
    lines, labels, boxes = [], [], []
    for (above, below), count in sorted(arrows.items(), key=lambda item: item[1]):
        (x1, y1), (x2, y2) = at[above], at[below]
        same_row = abs(y1 - y2) < 1
        if same_row:
            side = 1 if x2 > x1 else -1
            start, end = (x1 + side * BOX / 2, y1), (x2 - side * (BOX / 2 + 4), y2)
            middle = ((start[0] + end[0]) / 2, y1)
            path = f"M{start[0]:.0f} {start[1]:.0f} L{end[0]:.0f} {end[1]:.0f}"
        else:
            # The ends spread along the boxes, so that arrows to different layers do not cover each other.
            lean = max(-1.0, min(1.0, (x2 - x1) / 400))
            start = (x1 + lean * BOX * 0.36, y1 + HEIGHT / 2)
            end = (x2 - lean * BOX * 0.36, y2 - HEIGHT / 2 - 5)
            bend = 0.0
            if y2 - y1 > 1.5 * STEP:  # a long arrow goes around the boxes between its ends
                bend = (1 if (x1 + x2) / 2 >= WIDTH / 2 else -1) * 60 * (y2 - y1) / STEP
            c1, c2 = (
                (start[0] + bend, start[1] + (end[1] - start[1]) * 0.4),
                (end[0] + bend, start[1] + (end[1] - start[1]) * 0.6),
            )
            path = (
                f"M{start[0]:.0f} {start[1]:.0f} C{c1[0]:.0f} {c1[1]:.0f} {c2[0]:.0f} {c2[1]:.0f} {end[0]:.0f} {end[1]:.0f}"
            )
            middle = ((start[0] + 3 * c1[0] + 3 * c2[0] + end[0]) / 8, (start[1] + 3 * c1[1] + 3 * c2[1] + end[1]) / 8)
        up = layers.index(below) < layers.index(above)
        kind = "up" if up else "leaf" if below in ("errors", "files", "wording") else "down"
        lines.append(
            f'<path class="{kind}" d="{path}" stroke-width="{min(5.0, 1 + count**0.5 / 3):.1f}" marker-end="url(#{kind})"/>'
        )
        if kind != "leaf":
            labels.append(f'<text class="count" x="{middle[0]:.0f}" y="{middle[1] + 4:.0f}">{count}</text>')
    for name, (x, y) in at.items():
        boxes.append(f'<rect x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{BOX}" height="{HEIGHT}" rx="7"/>')
        boxes.append(f'<text class="name" x="{x:.0f}" y="{y - 4:.0f}">{escape(name)}</text>')
        boxes.append(f'<text class="what" x="{x:.0f}" y="{y + 15:.0f}">{escape(CONTENTS.get(name, ""))}</text>')
    heads = "".join(
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        for kind, colour in (("down", "#5b7fa6"), ("leaf", "#c3cad3"), ("up", "#c62828"))
    )
    style = (
        "text{font-family:sans-serif;text-anchor:middle}.title{font-size:15px;fill:#333}.name{font-size:15px;font-weight:bold;fill:#1d3b5c}"
        ".what{font-size:11.5px;fill:#555}.count{font-size:11.5px;fill:#234;paint-order:stroke;stroke:#fff;stroke-width:4px}"
        "rect{fill:#eef3f9;stroke:#5b7fa6}path{fill:none}.down{stroke:#5b7fa6}.leaf{stroke:#c3cad3}.up{stroke:#c62828}"
    )
    title = "Layers of fedkeel: an arrow points to what is imported, its number counts import statements"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}">',
            f"<title>{title}</title><style>{style}</style><defs>{heads}</defs>",
            f'<rect width="{WIDTH}" height="{height:.0f}" style="fill:#fff;stroke:none"/>',
            f'<text class="title" x="{WIDTH / 2:.0f}" y="30">{title}</text>',
            *lines,
            *boxes,
            *labels,
            "</svg>\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/map.svg")
    out = parser.parse_args().out
    layers = [name for name in order() if name not in ENTRIES]
    arrows = Counter({pair: count for pair, count in imports().items() if not set(pair) & set(ENTRIES)})
    unknown = {name for pair in arrows for name in pair} - set(layers)
    if unknown:
        raise SystemExit(f"map: tests/test_layers.py does not list {', '.join(sorted(unknown))}")
    out.write_text(drawing(arrows, layers))
    upward = [f"{a} -> {b} ({n})" for (a, b), n in arrows.items() if layers.index(b) < layers.index(a)]
    if upward:
        sys.exit(f"map: these arrows point up: {', '.join(sorted(upward))}")
    print(f"{out}: {len(layers)} layers, {len(arrows)} arrows, none points up")


if __name__ == "__main__":
    main()
