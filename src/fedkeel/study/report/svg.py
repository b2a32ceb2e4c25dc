"""Draws figures as SVG text for the page: no library, no script, no fonts.

The colours of paper, ink and grid are CSS variables, so a figure inside the page follows the reader's theme. A file has
the colours of both themes written out: programs that are not browsers (Inkscape, rsvg-convert) do not know variables.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape

from fedkeel.study.report.figure import Axis, Bars, Bubbles, Figure, Heat, Lines, Series, shortened, style

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 10, 44  # margins
LONGEST = 24  # characters of a name beside a bar or row; longer names would leave no room for these
SHORTEST = 60  # room for bars
SLANTED = 14  # characters of a slanted name
CHARACTER = 9  # width of a character in the larger type of a narrow screen (page.html), for a wide font
# From few to many. Everybody can tell them apart, also in grey.
HEAT = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))

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


def draw(figure: Figure, alone: bool = False) -> str:
    """A figure as it stands in the page. alone: with a legend and its own colours, as it stands in a file."""
    match figure:
        case Lines():
            drawn = _lines(figure, alone)
        case Bars():
            drawn = _bars(figure)
        case Heat():
            drawn = _heat(figure)
        case Bubbles():
            drawn = _bubbles(figure)
        case _:
            raise TypeError(f"figure: {type(figure).__name__} cannot be drawn")
    drawn = drawn.replace('role="img"', f'role="img" aria-label="{escape(figure.title)}"', 1)
    if not alone:
        return drawn
    themes = f"{_coloured(LIGHT)}@media (prefers-color-scheme: dark) {{{_coloured(DARK)}}}"
    return drawn.replace(">", f"><style>{themes}</style>", 1)


def _coloured(theme: Mapping[str, str]) -> str:
    return re.sub(r"var\(--(\w+)\)", lambda z: theme[z[1]], f"svg {{ background: var(--paper); }}{CLASSES}")


# Lines ----------------------------------------------------------------------------------------------------------------


def _lines(figure: Lines, alone: bool) -> str:
    series, x, y = figure.series, figure.x, figure.y
    px, py = places(x, y)
    parts = [frame(x, y, px, py)]
    for one in series:
        for piece in one.pieces() if one.low else []:
            edge = [(one.x[i], one.high[i]) for i in piece] + [(one.x[i], one.low[i]) for i in reversed(piece)]
            if one.flat:
                edge = [(x.low, one.high[0]), (x.high, one.high[0]), (x.high, one.low[0]), (x.low, one.low[0])]
            points = " ".join(f"{px(a):.1f},{py(min(max(b, y.low), y.high)):.1f}" for a, b in edge)
            parts.append(
                f'<polygon points="{points}" fill="{style(one.style)[0]}" fill-opacity="{figure.band_opacity()}"'
                f' data-of="{escape(one.name)}"/>'
            )
    drawn = "".join(_line(one, x, px, py) for one in series)
    if any(z is not None and z < y.low for one in series for z in one.y):  # cut off what lies below the plot
        box = f'x="{LEFT}" y="0" width="{WIDTH - LEFT}" height="{HEIGHT - BOTTOM}"'
        drawn = f'<svg {box} viewBox="{LEFT} 0 {WIDTH - LEFT} {HEIGHT - BOTTOM}">{drawn}</svg>'
    parts += [drawn, *_targets([z for z in figure.targets if y.low < z < y.high], py)]
    parts += _crosses(series, px, py(figure.lost_at))
    return picture(parts, figure.legend if alone else [])


def _targets(targets: Sequence[float], py: Callable[[float], float]) -> list[str]:
    """Dotted lines with names on the left, where curves are seldom that high. A name without room stands below its line."""
    parts = []
    for z in targets:
        free = py(z) > TOP + 14 and not any(0 < py(z) - py(other) < 14 for other in targets)
        parts.append(f'<path class="goal" d="M{LEFT} {py(z):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="faint over" x="{LEFT + 4}" y="{py(z) + (-4 if free else 13):.1f}">target {z:g}</text>')
    return parts


def _crosses(series: Sequence[Series], px: Callable[[float], float], edge: float) -> list[str]:
    """Lost points, at the edge of the plot. Several at one place are stacked inwards."""
    inward, taken, parts = 11 if edge < HEIGHT / 2 else -11, Counter[float](), []
    for one in [one for one in series if one.lost]:
        crosses = [mark("cross", px(z), edge + inward * taken[z], style(one.style)[0], 5) for z in one.lost]
        taken.update(one.lost)
        parts.append(f'<g data-of="{escape(one.name)}">{"".join(crosses)}</g>')
    return parts


def _line(one: Series, x: Axis, px: Callable[[float], float], py: Callable[[float], float]) -> str:
    colour, dash, marker = style(one.style)
    at = {i: (px(one.x[i]), py(one.y[i] or 0.0)) for piece in one.pieces() for i in piece}
    pieces = [[at[i] for i in piece] for piece in one.pieces()]
    marked = [at[i] for i in one.marked()]
    if one.flat:
        pieces = [[(px(x.low), piece[0][1]), (px(x.high), piece[0][1])] for piece in pieces]
        marked = [point for piece in pieces for point in piece]
    paths = [" ".join(f"{a:.1f},{b:.1f}" for a, b in piece) for piece in pieces]
    drawn = "".join(f'<polyline class="line" points="{z}" stroke="{colour}" stroke-dasharray="{dash}"/>' for z in paths)
    marks = "".join(mark(marker, a, b, colour) for a, b in marked)
    rings = "".join(
        f'<circle cx="{at[i][0]:.1f}" cy="{at[i][1]:.1f}" r="7" fill="none" stroke="{colour}"/>' for i in one.ringed
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
        parts.append(tick(px(z), HEIGHT - BOTTOM + 16, shortened(name, room), "middle"))
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
    """The line of a method in legends and tables."""
    colour, dash, marker = style(number)
    line = f'<path d="M0 6H34" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>{mark(marker, 17, 6, colour)}'
    return f'<svg class="key" width="34" height="12" viewBox="0 0 34 12" aria-hidden="true">{line}</svg>'


def picture(parts: Sequence[str], legend: Sequence[tuple[str, int]], height: int = HEIGHT) -> str:
    rows, beside = [], 2 if all(len(name) <= 26 for name, _ in legend) else 1
    for number, (name, of_line) in enumerate(legend):
        colour, dash, marker = style(of_line)
        a, b = 20 + (number % beside) * WIDTH / 2, height + 14 + 18 * (number // beside)
        rows.append(
            f'<path d="M{a} {b}h30" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            f'{mark(marker, a + 15, b, colour)}<text x="{a + 37}" y="{b + 4}">{escape(shortened(name, 54))}</text>'
        )
    whole = height + 18 * -(-len(legend) // beside) + (8 if legend else 0)
    body = "".join([*parts, *rows])
    return f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole}" role="img">{body}</svg>'


# Bars, heat maps, circles ---------------------------------------------------------------------------------------------


def _bars(figure: Bars) -> str:
    behind = 10 + CHARACTER * max(len(bar.text) for bar in figure.bars)
    room = int((WIDTH - behind - 12 - SHORTEST) / CHARACTER)
    longest = min(max(len(bar.name) for bar in figure.bars), LONGEST, room)
    left, row = 12 + CHARACTER * longest, 24
    height = row * len(figure.bars) + 34
    most = max((bar.length + (bar.deviation or 0) for bar in figure.bars if bar.length is not None), default=1.0)
    scale = (WIDTH - left - behind) / most
    parts = []
    for number, bar in enumerate(figure.bars):
        y, name, text = 6 + row * number, escape(bar.name), escape(bar.text)
        about = f"{escape(shortened(bar.name, longest))}<title>{name}</title>"
        parts.append(f'<text x="{left - 6:.0f}" y="{y + 14}" text-anchor="end">{about}</text>')
        end = left + (bar.length or 0) * scale
        if bar.length is not None:
            parts.append(
                f'<rect x="{left:.1f}" y="{y + 2}" width="{end - left:.1f}" height="{row - 8}"'
                f' fill="{style(bar.style)[0]}"><title>{name}: {text}</title></rect>'
            )
            if bar.deviation:
                start, end = (left + max(bar.length + sign * bar.deviation, 0) * scale for sign in (-1, 1))
                parts.append(f'<path class="spread" d="M{start:.1f} {y + 10}H{end:.1f}"/>')
        parts.append(f'<text class="faint" x="{end + 5:.1f}" y="{y + 14}">{text}</text>')
    label = escape(figure.label)
    parts.append(f'<text class="faint" x="{WIDTH - RIGHT}" y="{height - 10}" text-anchor="end">{label}</text>')
    return picture(parts, [], height)


def _heat(figure: Heat) -> str:
    x, y = figure.x, figure.y
    left = max(LEFT, 26 + CHARACTER * min(max(map(len, y.names)), LONGEST))
    wide, tall = (WIDTH - left - RIGHT) / len(x.names), (HEIGHT - TOP - BOTTOM) / len(y.names)
    slanted = 7 * max(map(len, x.names)) > wide  # they do not fit side by side
    names = [shortened(name, SLANTED) if slanted else name for name in x.names]
    more = 5 * max(map(len, names)) if slanted else 0
    parts = []
    for j, i, share, text in figure.cells():
        a, b = left + i * wide, TOP + (len(y.names) - 1 - j) * tall
        fill = "none" if share is None else heat_colour(share)
        ink = "" if share is None else f' style="fill:{"#fff" if share < 0.45 else "#111"}"'
        parts.append(f'<rect x="{a:.1f}" y="{b:.1f}" width="{wide - 1:.1f}" height="{tall - 1:.1f}" fill="{fill}"/>')
        middle = f'x="{a + wide / 2:.1f}" y="{b + tall / 2 + 4:.1f}" text-anchor="middle"'
        parts.append(f"<text {middle}{ink}>{text}</text>")
    for i, name in enumerate(names):
        a, b = left + (i + 0.5) * wide, HEIGHT - BOTTOM + (12 if slanted else 16)
        written = tick(a, b, name, "end" if slanted else "middle")
        parts.append(f'<g transform="rotate(-45 {a:.1f} {b:.1f})">{written}</g>' if slanted else written)
    for j, name in enumerate(y.names):
        parts.append(tick(left - 6, TOP + (len(y.names) - 0.5 - j) * tall + 4, shortened(name, LONGEST), "end"))
    return picture([*parts, *labels(x, y, HEIGHT + more)], [], HEIGHT + more)


def heat_colour(share: float) -> str:
    place = share * (len(HEAT) - 1)
    i = min(int(place), len(HEAT) - 2)
    mixed = (round(a + (b - a) * (place - i)) for a, b in zip(HEAT[i], HEAT[i + 1], strict=True))
    return "#" + "".join(f"{z:02x}" for z in mixed)


def _bubbles(figure: Bubbles) -> str:
    px, py = places(figure.x, figure.y)
    clients, classes = len(figure.counts), len(figure.counts[0])
    room = 0.5 * max(min((WIDTH - LEFT - RIGHT) / clients * 2.2, (HEIGHT - TOP - BOTTOM) / classes), 4)
    parts = [frame(figure.x, figure.y, px, py)]
    for i, row in enumerate(figure.counts):
        parts += [
            f'<circle cx="{px(i):.1f}" cy="{py(k):.1f}" r="{max(room * math.sqrt(n / figure.most), 0.35):.2f}"'
            f' fill="{figure.colour}" fill-opacity="0.8"/>'
            for k, n in enumerate(row)
            if n
        ]
    return picture(parts, [])
