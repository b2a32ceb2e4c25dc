"""Draws figures as SVG for the page. Here is where things are; `figure.svg` has the markup.

The colours of paper, ink and grid are CSS variables, so a figure inside the page follows the reader's theme. A file has
the colours of both themes written out: programs that are not browsers (Inkscape, rsvg-convert) do not know variables.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedkeel.study.report.figure import LEGEND, Axis, Bars, Bubbles, Figure, Heat, Lines, Series, shortened, style

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 10, 44  # margins
LONGEST = 24  # characters of a name beside a bar or row; longer names would leave no room for these
SHORTEST = 60  # room for bars
SLANTED = 14  # characters of a slanted name
CHARACTER = 9  # width of a character in the larger type of a narrow screen (page.html), for a wide font
# From few to many. Everybody can tell them apart, also in grey.
HEAT = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))

# Corners of markers around a point.
SHAPES: dict[str, list[tuple[float, float]]] = {
    "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "triangle": [(0, -1.25), (1.15, 0.9), (-1.15, 0.9)],
    "diamond": [(0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)],
}
LIGHT = {"paper": "#fff", "ink": "#1b1f24", "faint": "#5b6470", "rule": "#d9dde3"}
DARK = {"paper": "#14171b", "ink": "#e6e9ed", "faint": "#9aa4b0", "rule": "#343b44"}
CLASSES = """
.plot text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
.plot .tick, .plot .faint { fill: var(--faint); }
.plot .grid { stroke: var(--rule); stroke-width: 1; }
.plot .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.plot .goal { stroke: var(--faint); stroke-dasharray: 2 3; }
.plot .over { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
.plot .spread { stroke: var(--ink); stroke-width: 1.5; }
"""


Place = Callable[[float], float]  # from a value to pixels


@cache
def templates() -> Environment:
    """The templates of the page and of its figures."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["p"] = lambda pixels: f"{pixels:.1f}"
    made.globals |= {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "RIGHT": RIGHT, "TOP": TOP, "BOTTOM": BOTTOM}
    made.globals |= {"LONGEST": LONGEST, "LEGEND": LEGEND, "SHAPES": SHAPES}
    made.globals |= {"style": style, "shortened": shortened, "heat_colour": heat_colour}
    return made


def draw(figure: Figure, alone: bool = False) -> str:
    """A figure as it stands in the page. alone: with a legend and its own colours, as it stands in a file."""
    themes = f"{_coloured(LIGHT)}@media (prefers-color-scheme: dark) {{{_coloured(DARK)}}}" if alone else ""
    markup: Any = templates().get_template("figure.svg").module
    match figure:
        case Lines():
            return str(markup.lines(figure, themes, **_lines(figure)))
        case Bars():
            return str(markup.bars(figure, themes, **_bars(figure)))
        case Heat():
            return str(markup.heat(figure, themes, **_heat(figure)))
        case Bubbles():
            return str(markup.bubbles(figure, themes, **_bubbles(figure)))
    raise TypeError(f"figure: {type(figure).__name__} cannot be drawn")


def _coloured(theme: Mapping[str, str]) -> str:
    return re.sub(r"var\(--(\w+)\)", lambda z: theme[z[1]], f"svg {{ background: var(--paper); }}{CLASSES}")


def _places(x: Axis, y: Axis) -> tuple[Place, Place]:
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return lambda z: LEFT + wide * x.at(z), lambda z: TOP + tall * (1 - y.at(z))


def _points(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _lines(figure: Lines) -> dict[str, Any]:
    x, y = figure.x, figure.y
    px, py = _places(x, y)
    bands = []
    for one in figure.series:
        for piece in one.pieces() if one.low else []:
            edge = [(one.x[i], one.high[i]) for i in piece] + [(one.x[i], one.low[i]) for i in reversed(piece)]
            if one.flat:
                edge = [(x.low, one.high[0]), (x.high, one.high[0]), (x.high, one.low[0]), (x.low, one.low[0])]
            points = _points([(px(a), py(min(max(b, y.low), y.high))) for a, b in edge])
            bands.append((one.name, style(one.style)[0], points))
    drawn = [_line(one, x, px, py) for one in figure.series]
    targets = []
    shown = [z for z in figure.targets if y.low < z < y.high]
    for (
        z
    ) in shown:  # Names stand above their lines, on the left, where curves are seldom that high. Some have no room there.
        free = py(z) > TOP + 14 and not any(0 < py(z) - py(other) < 14 for other in shown)
        targets.append((z, py(z), py(z) + (-4 if free else 13)))
    # Lost points are at the edge of the plot. Several at one place are stacked inwards.
    edge_place, taken, crosses = py(figure.lost_at), Counter[float](), []
    inward = 11 if edge_place < HEIGHT / 2 else -11
    for one in [one for one in figure.series if one.lost]:
        crosses.append((one.name, style(one.style)[0], [(px(z), edge_place + inward * taken[z]) for z in one.lost]))
        taken.update(one.lost)
    return {"px": px, "py": py, "bands": bands, "drawn": drawn, "targets": targets, "crosses": crosses}


def _line(one: Series, x: Axis, px: Place, py: Place) -> dict[str, Any]:
    colour, dash, marker = style(one.style)
    at = {i: (px(one.x[i]), py(one.y[i] or 0.0)) for piece in one.pieces() for i in piece}
    pieces = [[at[i] for i in piece] for piece in one.pieces()]
    marked = [at[i] for i in one.marked()]
    if one.flat:
        pieces = [[(px(x.low), piece[0][1]), (px(x.high), piece[0][1])] for piece in pieces]
        marked = [point for piece in pieces for point in piece]
    look = {"name": one.name, "colour": colour, "dash": dash, "marker": marker}
    return look | {"paths": map(_points, pieces), "marked": marked, "ringed": [at[i] for i in one.ringed]}


def _bars(figure: Bars) -> dict[str, Any]:
    behind = 10 + CHARACTER * max(len(bar.text) for bar in figure.bars)
    room = int((WIDTH - behind - 12 - SHORTEST) / CHARACTER)
    longest = min(max(len(bar.name) for bar in figure.bars), LONGEST, room)
    left, row = 12 + CHARACTER * longest, 24
    most = max((bar.length + (bar.deviation or 0) for bar in figure.bars if bar.length is not None), default=1.0)
    scale = (WIDTH - left - behind) / most
    ends = []  # of every bar, and of the line of its deviation
    for length, deviation in [(bar.length or 0.0, bar.deviation or 0.0) for bar in figure.bars]:
        ends.append([left + max(z, 0) * scale for z in (0, length, length - deviation, length + deviation)])
    return {"left": left, "height": row * len(figure.bars) + 34, "row": row, "longest": longest, "ends": ends}


def _heat(figure: Heat) -> dict[str, Any]:
    x, y = figure.x, figure.y
    left = max(LEFT, 26 + CHARACTER * min(max(map(len, y.names)), LONGEST))
    wide, tall = (WIDTH - left - RIGHT) / len(x.names), (HEIGHT - TOP - BOTTOM) / len(y.names)
    slanted = 7 * max(map(len, x.names)) > wide  # they do not fit side by side
    names = [shortened(name, SLANTED) if slanted else name for name in x.names]
    height = HEIGHT + (5 * max(map(len, names)) if slanted else 0)
    return {"left": left, "wide": wide, "tall": tall, "names": names, "slanted": slanted, "height": height}


def heat_colour(share: float) -> str:
    place = share * (len(HEAT) - 1)
    i = min(int(place), len(HEAT) - 2)
    mixed = (round(a + (b - a) * (place - i)) for a, b in zip(HEAT[i], HEAT[i + 1], strict=True))
    return "#" + "".join(f"{z:02x}" for z in mixed)


def _bubbles(figure: Bubbles) -> dict[str, Any]:
    px, py = _places(figure.x, figure.y)
    clients, classes = len(figure.counts), len(figure.counts[0])
    room = 0.5 * max(min((WIDTH - LEFT - RIGHT) / clients * 2.2, (HEIGHT - TOP - BOTTOM) / classes), 4)
    found = [(i, k, n) for i, row in enumerate(figure.counts) for k, n in enumerate(row) if n]
    circles = [(px(i), py(k), max(room * math.sqrt(n / figure.most), 0.35)) for i, k, n in found]
    return {"px": px, "py": py, "circles": circles}
