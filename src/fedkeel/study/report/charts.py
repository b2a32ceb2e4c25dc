"""Bars, heat maps and bubbles as SVG text."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from html import escape

from fedkeel.study.report.axis import Axis
from fedkeel.study.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, cut, frame, labels, look, picture, places, tick

LONGEST = 24  # characters of a name beside a bar or row; more leave no room for these
SHORTEST = 60  # room for bars
SLANTED = 14  # of one that is written aslant
SIGN = 9  # width of a character in the larger type of a narrow screen (page.html), of a wide font
# From few to many; readable for all, also in grey.
HEAT = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))


def bars(rows: Sequence[tuple[str, int, float | None, float | None, str]], label: str) -> str:
    """Horizontal bars: (name, look, length or None, deviation, what to write behind it)."""
    behind = 10 + SIGN * max(len(line[-1]) for line in rows)
    longest = min(max(len(name) for name, *_ in rows), LONGEST, int((WIDTH - behind - 12 - SHORTEST) / SIGN))
    left, row = 12 + SIGN * longest, 24
    height = row * len(rows) + 34
    most = max((value + (spread or 0) for _, _, value, spread, _ in rows if value is not None), default=1.0)
    scale = (WIDTH - left - behind) / most
    parts = []
    for number, (name, style, value, spread, told) in enumerate(rows):
        y, colour = 6 + row * number, look(style)[0]
        about = f"{escape(cut(name, longest))}<title>{escape(name)}</title>"
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
    return picture(parts, [], height)


def heat(
    values: Sequence[Sequence[float | None]],
    x: Axis,
    y: Axis,
    span: tuple[float, float],
    starred: Collection[tuple[int, int]] = (),
) -> str:
    """A matrix of numbers, [len(y.names)][len(x.names)], each written into its cell. span: the numbers of the first and the
    last colour; starred: cells, [row, column], whose number has a star."""
    low, high = span
    left = max(LEFT, 26 + SIGN * min(max(map(len, y.names)), LONGEST))
    wide, tall = (WIDTH - left - RIGHT) / len(x.names), (HEIGHT - TOP - BOTTOM) / len(y.names)
    slanted = 7 * max(map(len, x.names)) > wide  # they do not fit side by side
    names = [cut(name, SLANTED) if slanted else name for name in x.names]
    more = 5 * max(map(len, names)) if slanted else 0
    parts = []
    for j, row in enumerate(values):
        for i, value in enumerate(row):
            share = 0.0 if value is None or high == low else (value - low) / (high - low)
            a, b = left + i * wide, TOP + (len(y.names) - 1 - j) * tall
            fill = "none" if value is None else heat_colour(share)
            ink = "#fff" if share < 0.45 and value is not None else "#111"
            told = "-" if value is None else f"{value:.3f}".removeprefix("0") + "*" * ((j, i) in starred)
            parts.append(f'<rect x="{a:.1f}" y="{b:.1f}" width="{wide - 1:.1f}" height="{tall - 1:.1f}" fill="{fill}"/>')
            style = f' style="fill:{ink}"' if value is not None else ""
            parts.append(
                f'<text x="{a + wide / 2:.1f}" y="{b + tall / 2 + 4:.1f}" text-anchor="middle"{style}>{told}</text>'
            )
    for i, name in enumerate(names):
        a, b = left + (i + 0.5) * wide, HEIGHT - BOTTOM + (12 if slanted else 16)
        written = tick(a, b, name, "end" if slanted else "middle")
        parts.append(f'<g transform="rotate(-45 {a:.1f} {b:.1f})">{written}</g>' if slanted else written)
    for j, name in enumerate(y.names):
        parts.append(tick(left - 6, TOP + (len(y.names) - 0.5 - j) * tall + 4, cut(name, LONGEST), "end"))
    return picture([*parts, *labels(x, y, HEIGHT + more)], [], HEIGHT + more)


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
    px, py = places(x, y)
    room = 0.5 * max(min((WIDTH - LEFT - RIGHT) / clients * 2.2, (HEIGHT - TOP - BOTTOM) / kinds), 4)
    parts = [frame(x, y, px, py)]
    for i, row in enumerate(counts):
        parts += [
            f'<circle cx="{px(i):.1f}" cy="{py(k):.1f}" r="{max(room * math.sqrt(n / most), 0.35):.2f}" fill="#1F80BB"'
            ' fill-opacity="0.8"/>'
            for k, n in enumerate(row)
            if n
        ]
    return picture(parts, [])
