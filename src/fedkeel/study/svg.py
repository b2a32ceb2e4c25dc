"""Small plots as SVG text: lines with bands, bars, heat maps and bubbles. No library, no script, no fonts of their own.

Colours of paper, ink and grid come from CSS variables, so a plot inside a page follows its theme. In a file of its own
it has the colours themselves, of both themes: what is not a browser (Inkscape, rsvg-convert) knows no variables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from fedkeel.study.axis import Axis

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 10, 44  # margins
LONGEST = 30  # characters of a name beside a bar or row; more leave no room for these
SLANTED = 14  # of one that is written aslant
# Okabe and Ito's colours, which colour-blind readers can tell apart, without their yellow (invisible on white) and with dark
# grey for their black (invisible on a dark page); dashes and markers carry the same information again, and 7 x 6 of them are
# all different.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#666666")
DASHES = ("", "8 4", "2 3", "8 3 2 3", "13 4", "4 3")
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus")
# From few to many; readable for all, also in grey.
HEAT = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))

LIGHT = {"paper": "#fff", "ink": "#1b1f24", "faint": "#5b6470", "rule": "#d9dde3"}
DARK = {"paper": "#14171b", "ink": "#e6e9ed", "faint": "#9aa4b0", "rule": "#343b44"}
CLASSES = """
.plot text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
.plot .tick, .plot .faint { fill: var(--faint); }
.plot .grid { stroke: var(--rule); stroke-width: 1; }
.plot .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.plot .goal { stroke: var(--faint); stroke-dasharray: 2 3; }
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


# Pictures -------------------------------------------------------------------------------------------------------------


def lines(
    series: Sequence[Series], x: Axis, y: Axis, goals: Sequence[float] = (), alone: bool = False, lost_at: float = 0.0
) -> str:
    """Lines with bands. alone: with a legend and the style, for a file of its own; lost_at: where lost points are marked."""
    px, py = _places(x, y)
    parts = [_frame(x, y, px, py)]
    parts += [f'<path class="goal" d="M{px(x.low):.1f} {py(z):.1f}H{px(x.high):.1f}"/>' for z in goals if y.low < z < y.high]
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
    parts.append(drawn)
    for one in series:
        crosses = "".join(mark("cross", px(z), py(lost_at), look(one.look)[0], 5) for z in one.lost)
        parts += [f'<g data-of="{escape(one.name)}">{crosses}</g>'] if crosses else []
    return _svg(parts, [(one.name, one.look) for one in series] if alone else [])


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
    return f'<g class="series" data-of="{escape(one.name)}">{drawn}{marks}</g>'


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


def bars(rows: Sequence[tuple[str, int, float | None, float | None, str]], label: str) -> str:
    """Horizontal bars: (name, look, length or None, deviation, what to write behind it)."""
    left, row = 12 + 7.2 * min(max(len(name) for name, *_ in rows), LONGEST), 24
    height = row * len(rows) + 34
    most = max((value + (spread or 0) for _, _, value, spread, _ in rows if value is not None), default=1.0)
    scale = (WIDTH - left - 10 - 7 * max(len(line[-1]) for line in rows)) / most
    parts = []
    for number, (name, style, value, spread, told) in enumerate(rows):
        y, colour = 6 + row * number, look(style)[0]
        about = f"{escape(_cut(name, LONGEST))}<title>{escape(name)}</title>"
        parts.append(f'<text x="{left - 6:.0f}" y="{y + 14}" text-anchor="end">{about}</text>')
        end = left + (value or 0) * scale
        if value is not None:
            parts.append(
                f'<rect x="{left:.1f}" y="{y + 2}" width="{end - left:.1f}" height="{row - 8}" fill="{colour}">'
                f"<title>{escape(name)}: {escape(told)}</title></rect>"
            )
            if spread:
                a, b = left + max(value - spread, 0) * scale, left + (value + spread) * scale
                parts.append(f'<path class="spread" d="M{a:.1f} {y + 10}H{b:.1f}"/>')
                end = b
        parts.append(f'<text class="faint" x="{end + 5:.1f}" y="{y + 14}">{escape(told)}</text>')
    parts.append(f'<text class="faint" x="{WIDTH - RIGHT}" y="{height - 10}" text-anchor="end">{escape(label)}</text>')
    return _svg(parts, [], height)


def _cut(name: str, most: int) -> str:
    """A long name without its middle: the method, and what tells its lines apart."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"


def heat(values: Sequence[Sequence[float | None]], x: Axis, y: Axis) -> str:
    """A matrix of numbers, [len(y.names)][len(x.names)], each written into its cell."""
    good = [z for row in values for z in row if z is not None]
    low, high = (min(good), max(good)) if good else (0.0, 1.0)
    left = max(LEFT, 26 + 7 * min(max(map(len, y.names)), LONGEST))
    wide, tall = (WIDTH - left - RIGHT) / len(x.names), (HEIGHT - TOP - BOTTOM) / len(y.names)
    slanted = 7 * max(map(len, x.names)) > wide  # they do not fit side by side
    names = [_cut(name, SLANTED) if slanted else name for name in x.names]
    more = 5 * max(map(len, names)) if slanted else 0
    parts = []
    for j, row in enumerate(values):
        for i, value in enumerate(row):
            share = 0.0 if value is None or high == low else (value - low) / (high - low)
            a, b = left + i * wide, TOP + (len(y.names) - 1 - j) * tall
            fill = "none" if value is None else heat_colour(share)
            ink = "#fff" if share < 0.45 and value is not None else "#111"
            told = "-" if value is None else f"{value:.3f}".removeprefix("0")
            parts.append(f'<rect x="{a:.1f}" y="{b:.1f}" width="{wide - 1:.1f}" height="{tall - 1:.1f}" fill="{fill}"/>')
            style = f' style="fill:{ink}"' if value is not None else ""
            parts.append(
                f'<text x="{a + wide / 2:.1f}" y="{b + tall / 2 + 4:.1f}" text-anchor="middle"{style}>{told}</text>'
            )
    for i, name in enumerate(names):
        a, b = left + (i + 0.5) * wide, HEIGHT - BOTTOM + (12 if slanted else 16)
        tick = _tick(a, b, name, "end" if slanted else "middle")
        parts.append(f'<g transform="rotate(-45 {a:.1f} {b:.1f})">{tick}</g>' if slanted else tick)
    for j, name in enumerate(y.names):
        parts.append(_tick(left - 6, TOP + (len(y.names) - 0.5 - j) * tall + 4, _cut(name, LONGEST), "end"))
    return _svg([*parts, *_labels(x, y, HEIGHT + more)], [], HEIGHT + more)


def heat_colour(share: float) -> str:
    place = share * (len(HEAT) - 1)
    i = min(int(place), len(HEAT) - 2)
    mixed = (round(a + (b - a) * (place - i)) for a, b in zip(HEAT[i], HEAT[i + 1], strict=True))
    return "#" + "".join(f"{z:02x}" for z in mixed)


def bubbles(counts: Sequence[Sequence[int]]) -> str:
    """How many samples of every class (rows) each client (columns) has: the area of a circle."""
    clients, kinds = len(counts), len(counts[0])
    most = max(max(row) for row in counts) or 1
    x, y = Axis(f"client (largest circle: {most} samples)", -0.8, clients - 0.2), Axis("class", -0.8, kinds - 0.2)
    px, py = _places(x, y)
    room = 0.5 * max(min((WIDTH - LEFT - RIGHT) / clients * 2.2, (HEIGHT - TOP - BOTTOM) / kinds), 4)
    parts = [_frame(x, y, px, py)]
    for i, row in enumerate(counts):
        parts += [
            f'<circle cx="{px(i):.1f}" cy="{py(k):.1f}" r="{max(room * math.sqrt(n / most), 0.35):.2f}" fill="#1F80BB"'
            ' fill-opacity="0.8"/>'
            for k, n in enumerate(row)
            if n
        ]
    return _svg(parts, [])


def _places(x: Axis, y: Axis) -> tuple[Callable[[float], float], Callable[[float], float]]:
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return lambda z: LEFT + wide * x.at(z), lambda z: TOP + tall * (1 - y.at(z))


def _frame(x: Axis, y: Axis, px: Callable[[float], float], py: Callable[[float], float]) -> str:
    """Grid, ticks and labels."""
    parts = []
    for z, name in y.ticks():
        parts.append(
            f'<path class="grid" d="M{LEFT} {py(z):.1f}H{WIDTH - RIGHT}"/>' + _tick(LEFT - 6, py(z) + 4, name, "end")
        )
    room = max(8, int((WIDTH - LEFT - RIGHT) / 6.5 / max(len(x.names), 1)))
    for z, name in x.ticks():
        parts.append(_tick(px(z), HEIGHT - BOTTOM + 16, _cut(name, room), "middle"))
    parts.append(f'<path class="grid" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    return "".join(parts + _labels(x, y))


def _labels(x: Axis, y: Axis, height: int = HEIGHT) -> list[str]:
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    return [
        f'<text x="{LEFT + (WIDTH - LEFT - RIGHT) / 2}" y="{height - 8}" text-anchor="middle">{escape(x.label)}</text>',
        f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">{escape(y.label)}</text>',
    ]


def _tick(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def key(number: int) -> str:
    """The line of a method as it stands in legends and tables."""
    colour, dash, marker = look(number)
    line = f'<path d="M0 6H34" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>{mark(marker, 17, 6, colour)}'
    return f'<svg class="key" width="34" height="12" viewBox="0 0 34 12" aria-hidden="true">{line}</svg>'


def _svg(parts: Sequence[str], legend: Sequence[tuple[str, int]], height: int = HEIGHT) -> str:
    rows, beside = [], 2 if all(len(name) <= 26 for name, _ in legend) else 1  # longer names leave no room for two
    for number, (name, style) in enumerate(legend):
        colour, dash, marker = look(style)
        a, b = 20 + (number % beside) * WIDTH / 2, height + 14 + 18 * (number // beside)
        rows.append(
            f'<path d="M{a} {b}h30" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            f'{mark(marker, a + 15, b, colour)}<text x="{a + 37}" y="{b + 4}">{escape(_cut(name, 54))}</text>'
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
