"""Draws the imports between the layers of the package: docs/map.svg. An arrow that points up is an error.

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
    "laws": "what every method obeys",
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
    "user_code": "finds package.module:name",
    "errors": "error classes",
}
LEAVES = (
    "errors",
    "files",
    "user_code",
    "wording",
)  # nearly all layers import them: written into the boxes, not drawn as arrows
ENTRIES = ("__init__", "__main__")  # the public names, and `python -m fedkeel`: above everything, not drawn
WIDTH, LEFT, BOX, HEIGHT, STEP, TOP = 900, 150, 330, 50, 76, 60


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


def drawing(arrows: Counter[tuple[str, str]], layers: list[str]) -> str:
    """One column of boxes. Arrows down bend to the right of it, arrows up to the left, so that none crosses a box."""
    top = {name: TOP + STEP * place for place, name in enumerate(layers)}
    lines, labels, boxes = [], [], []
    for (above, below), count in sorted(arrows.items(), key=lambda item: item[1]):
        if below in LEAVES:
            continue
        span = layers.index(below) - layers.index(above)
        kind, side = ("down", LEFT + BOX) if span > 0 else ("up", LEFT)
        # Ends are spread over the side of a box: long arrows leave at its top and arrive at its top.
        start, end = top[above] + HEIGHT - 8 - 3.5 * abs(span), top[below] + HEIGHT - 8 - 3.5 * abs(span)
        bend = side + (1 if span > 0 else -1) * (20 + 46 * abs(span))
        path = f"M{side} {start:.0f} C{bend} {start:.0f} {bend} {end:.0f} {side + (5 if span > 0 else -5)} {end:.0f}"
        width = min(5.0, 1 + count**0.5 / 3)
        lines.append(f'<path class="{kind}" d="{path}" stroke-width="{width:.1f}" marker-end="url(#{kind})"/>')
        x, y = (2 * side + 6 * bend) / 8, (start + end) / 2
        labels.append(f'<text class="count" x="{x:.0f}" y="{y + 4:.0f}">{count}</text>')
    for name, y in top.items():
        leaves = [f"{leaf} {arrows[name, leaf]}" for leaf in LEAVES if arrows[name, leaf]]
        x = LEFT + BOX / 2
        boxes.append(f'<rect x="{LEFT}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="7"/>')
        boxes.append(f'<text class="name" x="{x:.0f}" y="{y + 20}">{escape(name)}</text>')
        boxes.append(f'<text class="what" x="{x:.0f}" y="{y + 39}">{escape(CONTENTS.get(name, ""))}</text>')
        boxes.append(f'<text class="leaf" x="{LEFT - 10}" y="{y + 29}">{", ".join(leaves)}</text>')
    heads = "".join(
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" style="fill:{colour}"/></marker>'
        for kind, colour in (("down", "#5b7fa6"), ("up", "#c62828"))
    )
    style = (
        "text{font-family:sans-serif;text-anchor:middle}.title{font-size:14px;fill:#333}"
        ".name{font-size:15px;font-weight:bold;fill:#1d3b5c}.what{font-size:11.5px;fill:#555}"
        ".leaf{font-size:11px;fill:#888;text-anchor:end}"
        ".count{font-size:11.5px;fill:#234;paint-order:stroke;stroke:#fff;stroke-width:4px}"
        "rect{fill:#eef3f9;stroke:#5b7fa6}path{fill:none}.down{stroke:#5b7fa6}.up{stroke:#c62828}"
    )
    height = TOP + STEP * len(layers)
    title = "Layers of fedkeel: an arrow leads to what is imported, numbers count import statements"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
            f"<title>{title}</title><style>{style}</style><defs>{heads}</defs>",
            f'<rect width="{WIDTH}" height="{height}" style="fill:#fff;stroke:none"/>',
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
