"""Plots as SVG text: lines with bands, and what all plots are made of. No library, no script, no fonts of their own.

Colours of paper, ink and grid come from CSS variables, so a plot inside a page follows its theme. In a file of its own
it has the colours themselves, of both themes: what is not a browser (Inkscape, rsvg-convert) knows no variables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from fedkeel.study.report.axis import Axis

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 10, 44  # margins
# Okabe and Ito's colours, which colour-blind readers can tell apart, without their yellow (invisible on white) and with dark
# grey for their black (invisible on a dark page); dashes and markers carry the same information again, and 7 x 6 of them are
# all different.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#666666")
DASHES = ("", "8 4", "2 3", "8 3 2 3", "13 4", "4 3")
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus")

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


def look(number: int) -> tuple[str, str, str]:
    """(colour, dash, marker) of the line with this number."""
    return COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)], MARKERS[number % len(MARKERS)]


@dataclass
class Series:
    name: str
    look: int
    x: list[float]
    y: list[float | None]
    low: list[float] = field(default_factory=list)  # edges of the band
    high: list[float] = field(default_factory=list)
    marks: bool = False  # all points are marked, not just some
    flat: bool = False  # one value, drawn all the way across
    lost: list[float] = field(default_factory=list)  # places on the axis without a value: runs failed, or missed the target
    ringed: list[int] = field(default_factory=list)  # points that are not of all seeds


@dataclass
class Figure:
    name: str  # of its file
    case: str
    title: str
    inline: str  # as it stands in the page
    alone: str  # as it stands in a file
    legend: list[tuple[str, int]] = field(default_factory=list)  # of lines: (name, look)
    data: dict[str, Any] = field(default_factory=dict)  # what the page needs to name a point under the pointer


# Pictures -------------------------------------------------------------------------------------------------------------


def lines(
    series: Sequence[Series], x: Axis, y: Axis, goals: Sequence[float] = (), alone: bool = False, lost_at: float = 0.0
) -> str:
    """Lines with bands. alone: with a legend and the style, for a file of its own; lost_at: where lost points are marked."""
    px, py = places(x, y)
    parts = [frame(x, y, px, py)]
    faint = 0.15 if len(series) <= 5 else 0.08  # many bands on top of each other hide the lines
    for one in series:
        colour = look(one.look)[0]
        for piece in _pieces(one) if one.low else []:
            edge = [(one.x[i], one.high[i]) for i in piece] + [(one.x[i], one.low[i]) for i in reversed(piece)]
            if one.flat:
                edge = [(x.low, one.high[0]), (x.high, one.high[0]), (x.high, one.low[0]), (x.low, one.low[0])]
            points = " ".join(f"{px(a):.1f},{py(min(max(b, y.low), y.high)):.1f}" for a, b in edge)
            parts.append(f'<polygon points="{points}" fill="{colour}" fill-opacity="{faint}" data-of="{escape(one.name)}"/>')
    drawn = "".join(_line(one, x, px, py) for one in series)
    if any(z is not None and z < y.low for one in series for z in one.y):  # what lies below the plot is cut off
        box = f'x="{LEFT}" y="0" width="{WIDTH - LEFT}" height="{HEIGHT - BOTTOM}"'
        drawn = f'<svg {box} viewBox="{LEFT} 0 {WIDTH - LEFT} {HEIGHT - BOTTOM}">{drawn}</svg>'
    parts += [drawn, *_goals([z for z in goals if y.low < z < y.high], py)]
    parts += _crosses(series, px, py(lost_at))
    return picture(parts, [(one.name, one.look) for one in series] if alone else [])


def _goals(goals: Sequence[float], py: Callable[[float], float]) -> list[str]:
    """Dotted lines with their names on the left, where curves seldom are so high; below them if there is no room."""
    parts = []
    for z in goals:
        free = py(z) > TOP + 14 and not any(0 < py(z) - py(other) < 14 for other in goals)
        parts.append(f'<path class="goal" d="M{LEFT} {py(z):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="faint over" x="{LEFT + 4}" y="{py(z) + (-4 if free else 13):.1f}">target {z:g}</text>')
    return parts


def _crosses(series: Sequence[Series], px: Callable[[float], float], edge: float) -> list[str]:
    """What was lost, at the edge of the plot; of several lines in one place they stand one behind the other."""
    inward, taken, parts = 11 if edge < HEIGHT / 2 else -11, Counter[float](), []
    for one in [one for one in series if one.lost]:
        crosses = [mark("cross", px(z), edge + inward * taken[z], look(one.look)[0], 5) for z in one.lost]
        taken.update(one.lost)
        parts.append(f'<g data-of="{escape(one.name)}">{"".join(crosses)}</g>')
    return parts


def _pieces(one: Series) -> list[list[int]]:
    """The places of a line's points, from one gap to the next."""
    found: list[list[int]] = [[]]
    for i, value in enumerate(one.y):
        found += [[]] if value is None else []
        found[-1] += [] if value is None else [i]
    return [piece for piece in found if piece]


def _line(one: Series, x: Axis, px: Callable[[float], float], py: Callable[[float], float]) -> str:
    colour, dash, marker = look(one.look)
    pieces = [[(px(one.x[i]), py(one.y[i] or 0.0)) for i in piece] for piece in _pieces(one)]
    if one.flat:
        pieces = [[(px(x.low), piece[0][1]), (px(x.high), piece[0][1])] for piece in pieces]
    paths = [" ".join(f"{a:.1f},{b:.1f}" for a, b in piece) for piece in pieces]
    drawn = "".join(f'<polyline class="line" points="{z}" stroke="{colour}" stroke-dasharray="{dash}"/>' for z in paths)
    points = [point for piece in pieces for point in piece]
    every = 1 if one.marks else max(1, len(points) // 5)
    offset = 0 if one.marks else (one.look * every) // 7  # or the markers of all lines stand in columns
    marks = "".join(mark(marker, a, b, colour) for a, b in points[offset::every])
    rings = "".join(
        f'<circle cx="{px(one.x[i]):.1f}" cy="{py(one.y[i] or 0.0):.1f}" r="7" fill="none" stroke="{colour}"/>'
        for i in one.ringed
    )
    return f'<g class="series" data-of="{escape(one.name)}">{drawn}{marks}{rings}</g>'


def mark(kind: str, x: float, y: float, colour: str, r: float = 3.2) -> str:
    """A marker around a point."""
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{colour}"/>'
    if kind in ("cross", "plus"):
        d = r * (0.8 if kind == "cross" else 1.15)
        path = f"M{x - d:.1f} {y - d:.1f}L{x + d:.1f} {y + d:.1f}M{x - d:.1f} {y + d:.1f}L{x + d:.1f} {y - d:.1f}"
        if kind == "plus":
            path = f"M{x - d:.1f} {y:.1f}H{x + d:.1f}M{x:.1f} {y - d:.1f}V{y + d:.1f}"
        return f'<path d="{path}" stroke="{colour}" stroke-width="2"/>'
    shapes = {
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        "triangle": [(0, -1.25), (1.15, 0.9), (-1.15, 0.9)],
        "diamond": [(0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)],
    }
    points = " ".join(f"{x + a * r * 0.9:.1f},{y + b * r * 0.9:.1f}" for a, b in shapes[kind])
    return f'<polygon points="{points}" fill="{colour}"/>'


def cut(name: str, most: int) -> str:
    """A long name without its middle: the method, and what tells its lines apart."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"


def places(x: Axis, y: Axis) -> tuple[Callable[[float], float], Callable[[float], float]]:
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return lambda z: LEFT + wide * x.at(z), lambda z: TOP + tall * (1 - y.at(z))


def frame(x: Axis, y: Axis, px: Callable[[float], float], py: Callable[[float], float]) -> str:
    """Grid, ticks and labels."""
    parts = []
    for z, name in y.ticks():
        parts.append(
            f'<path class="grid" d="M{LEFT} {py(z):.1f}H{WIDTH - RIGHT}"/>' + tick(LEFT - 6, py(z) + 4, name, "end")
        )
    room = max(8, int((WIDTH - LEFT - RIGHT) / 6.5 / max(len(x.names), 1)))
    for z, name in x.ticks():
        parts.append(tick(px(z), HEIGHT - BOTTOM + 16, cut(name, room), "middle"))
    parts.append(f'<path class="grid" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    return "".join(parts + labels(x, y))


def labels(x: Axis, y: Axis, height: int = HEIGHT) -> list[str]:
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    return [
        f'<text x="{LEFT + (WIDTH - LEFT - RIGHT) / 2}" y="{height - 8}" text-anchor="middle">{escape(x.label)}</text>',
        f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">{escape(y.label)}</text>',
    ]


def tick(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def key(number: int) -> str:
    """The line of a method as it stands in legends and tables."""
    colour, dash, marker = look(number)
    line = f'<path d="M0 6H34" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>{mark(marker, 17, 6, colour)}'
    return f'<svg class="key" width="34" height="12" viewBox="0 0 34 12" aria-hidden="true">{line}</svg>'


def picture(parts: Sequence[str], legend: Sequence[tuple[str, int]], height: int = HEIGHT) -> str:
    rows, beside = [], 2 if all(len(name) <= 26 for name, _ in legend) else 1  # longer names leave no room for two
    for number, (name, style) in enumerate(legend):
        colour, dash, marker = look(style)
        a, b = 20 + (number % beside) * WIDTH / 2, height + 14 + 18 * (number // beside)
        rows.append(
            f'<path d="M{a} {b}h30" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            f'{mark(marker, a + 15, b, colour)}<text x="{a + 37}" y="{b + 4}">{escape(cut(name, 54))}</text>'
        )
    whole = height + 18 * -(-len(legend) // beside) + (8 if legend else 0)
    body = "".join([*parts, *rows])
    return f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole}" role="img">{body}</svg>'


def named(drawn: str, title: str) -> str:
    """A plot that tells those who do not see it what it is."""
    return drawn.replace('role="img"', f'role="img" aria-label="{escape(title)}"', 1)


def as_file(drawn: str) -> str:
    """A plot with its style, for a file of its own."""
    style = f"{_coloured(LIGHT)}@media (prefers-color-scheme: dark) {{{_coloured(DARK)}}}"
    return drawn.replace(">", f"><style>{style}</style>", 1)


def _coloured(theme: Mapping[str, str]) -> str:
    return re.sub(r"var\(--(\w+)\)", lambda z: theme[z[1]], f"svg {{ background: var(--paper); }}{CLASSES}")
