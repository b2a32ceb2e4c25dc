"""What a figure shows: its axes, lines, bars, cells or circles, and how each line looks.

`svg.py` draws a figure for the page, and `paper_figures.py` draws the same figure with matplotlib for papers.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

# The colours of Okabe and Ito, which colour-blind readers can tell apart. Their yellow is left out: it is invisible on
# white. Dark grey replaces their black, which is invisible on a dark page. Dashes and markers repeat the information, and
# all 7 x 6 combinations differ.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#666666")
DASHES = ("", "8 4", "2 3", "8 3 2 3", "13 4", "4 3")
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus")
LEGEND = 54  # characters of a name in a legend


SETTING = 1000  # Style SETTING * k + n is that of the n-th method at its k-th setting: its colour with other dashes.
GOLDEN = 0.618034  # of the colour circle: hues that follow each other at this distance are far apart


def style(number: int) -> tuple[str, str, str]:
    """(colour, dash, marker) of the line with this number."""
    setting, method = divmod(number, SETTING)
    look = method + setting
    return colour(method), DASHES[look % len(DASHES)], MARKERS[look % len(MARKERS)]


def colour(method: int) -> str:
    """The colour of a method. No two methods share one."""
    if method < len(COLOURS):
        return COLOURS[method]
    red, green, blue = colorsys.hls_to_rgb(method * GOLDEN % 1, 0.42 + 0.16 * (method % 2), 0.55)
    return "#" + "".join(f"{round(255 * z):02X}" for z in (red, green, blue))


# Axes -----------------------------------------------------------------------------------------------------------------


@dataclass
class Axis:
    label: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    names: list[str] = field(default_factory=list)  # names of the places 0, 1, ... on an axis without numbers
    whole: bool = False  # the values are counts: no ticks between whole numbers
    unit: str = ""  # a shorter word than the label, for the value of one point

    def __post_init__(self) -> None:
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def at(self, value: float) -> float:
        """The place of a value on the axis: 0 at its low end, 1 at its high end."""
        if self.log:
            value = max(value, self.low)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        if self.names:
            return [(float(i), name) for i, name in enumerate(self.names)]
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, (last - first) // 5)
            tens = [10.0**e for e in range(first, last + 1, every)]
            if len(tens) < 3:  # less than two decades: 2 and 5 in between
                tens = [z * 10.0**e for e in range(first - 1, last + 1) for z in (1, 2, 5)]
            found = [(z, short(z)) for z in tens if self.low <= z <= self.high * 1.0001]
            if len(found) > 2:
                return found
            # Otherwise the axis spans so little that ticks at equal distances are easier to read.
        step = max(_round_step((self.high - self.low) / 5), float(self.whole))
        first = math.ceil(self.low / step - 1e-9)
        found = []
        while first * step <= self.high + 1e-9 * step:
            found.append((first * step, short(round(first * step, 12))))
            first += 1
        return found


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten."""
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(size * z for z in (1, 2, 5, 10) if size * z >= rough - 1e-12)


def short(number: float) -> str:
    """A number at a tick: 0.5, 20k, 3M."""
    if abs(number) >= 1e15:
        return f"{number:.3g}".replace("e+", "e")
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}".replace("e-0", "e-")


def fit(values: Sequence[float | None], log: bool = False, label: str = "") -> Axis:
    """An axis on which all values have room. Numbers that are not finite are ignored."""
    good = [z for z in values if z is not None and math.isfinite(z) and (z > 0 or not log)]
    if not good:
        return Axis(label)
    low, high = min(good), max(good)
    if log:
        return Axis(label, low / 1.15, high * 1.15, True)
    pad = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    return Axis(label, low - pad, high + pad)


# Figures --------------------------------------------------------------------------------------------------------------


@dataclass
class Series:
    """A line with its band. `low` and `high` are the edges of the band, empty if there is none."""

    name: str
    style: int
    x: list[float]
    y: list[float | None]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    marks: bool = False  # mark every point, not only some
    flat: bool = False  # one value, drawn across the whole plot
    lost: list[float] = field(default_factory=list)  # places on the x axis where runs failed or missed the target
    ringed: list[int] = field(default_factory=list)  # indices of points that are means over only some of the seeds

    def pieces(self) -> list[list[int]]:
        """The indices of the points, split where a value is missing."""
        found: list[list[int]] = [[]]
        for i, value in enumerate(self.y):
            if value is None:
                found.append([])
            else:
                found[-1].append(i)
        return [piece for piece in found if piece]

    def marked(self) -> list[int]:
        """The indices of the points that get a marker. Every line starts at another one: markers do not form columns."""
        points = [i for piece in self.pieces() for i in piece]
        every = 1 if self.marks else max(1, len(points) // 5)
        return points[0 if self.marks else (sum(divmod(self.style, SETTING)) % 7 * every) // 7 :: every]


@dataclass
class Figure:
    """What all figures have. `name` is the name of its file."""

    name: str = field(default="", kw_only=True)
    case: str = field(default="", kw_only=True)
    title: str = field(default="", kw_only=True)

    @property
    def legend(self) -> list[tuple[str, int]]:
        """Names and styles of its lines."""
        return []

    @property
    def legend_columns(self) -> int:
        """Two names stand side by side, unless one of them is long."""
        return 2 if all(len(name) <= 26 for name, _ in self.legend) else 1


@dataclass
class Lines(Figure):
    series: Sequence[Series]
    x: Axis
    y: Axis
    targets: Sequence[float] = ()  # drawn as dotted lines
    lost_at: float = 0.0  # the value of y at which lost points are marked

    @property
    def legend(self) -> list[tuple[str, int]]:
        return [(one.name, one.style) for one in self.series]

    def is_cut(self) -> bool:
        """Do points lie below the plot? They are not shown."""
        return any(z is not None and z < self.y.low for one in self.series for z in one.y)

    def band_opacity(self) -> float:
        """Many bands on top of each other would hide the lines."""
        return 0.15 if len(self.series) <= 5 else 0.08


@dataclass
class Bar:
    name: str
    style: int
    length: float | None
    deviation: float | None
    text: str  # written behind the bar


@dataclass
class Bars(Figure):
    bars: Sequence[Bar]
    label: str  # of the axis along the bars


@dataclass
class Heat(Figure):
    """A matrix of numbers, one row per name of y and one column per name of x."""

    values: Sequence[Sequence[float | None]]
    x: Axis
    y: Axis
    span: tuple[float, float]  # the numbers of the first and the last colour
    starred: Collection[tuple[int, int]] = ()  # (row, column) of means over only some of the seeds

    def cells(self) -> list[tuple[int, int, float | None, str]]:
        """(row, column, share of the way from the first to the last colour, text) of every cell."""
        (low, high) = self.span
        found: list[tuple[int, int, float | None, str]] = []
        for j, row in enumerate(self.values):
            for i, value in enumerate(row):
                if value is None:
                    found.append((j, i, None, "-"))
                else:
                    share = 0.0 if high == low else (value - low) / (high - low)
                    text = f"{value:.3f}".removeprefix("0") + "*" * ((j, i) in self.starred)
                    found.append((j, i, share, text))
        return found


@dataclass
class Bubbles(Figure):
    """How many samples of every class (columns of `counts`) each client (rows) has: the area of a circle."""

    counts: Sequence[Sequence[int]]
    colour: str = "#1F80BB"

    def __post_init__(self) -> None:
        clients, classes = len(self.counts), len(self.counts[0])
        self.most = max(max(row) for row in self.counts) or 1
        self.x = Axis(f"client (largest circle: {self.most} samples)", -0.8, clients - 0.2)
        self.y = Axis("class", -0.8, classes - 0.2)


def shortened(name: str, most: int) -> str:
    """A long name without its middle: methods are named at the start, their settings at the end."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"
