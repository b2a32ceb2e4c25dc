"""Draws figures with matplotlib, for papers: PDF, PGF, SVG and PNG."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.study.report.figure import LEGEND, Axis, Bars, Bubbles, Figure, Heat, Lines, Series, shortened, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

FORMATS = ("pdf", "pgf", "svg", "png")
LATEX = ("xelatex", "lualatex", "pdflatex")  # PGF needs one of these programs to measure its texts
SIZE = (4.6, 3.2)  # inches: the proportions of the page's figures
MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "x", "plus": "+"}
FONTS: dict[Any, Any] = {
    "font.size": 9,
    "legend.fontsize": 8,
    "axes.titlesize": 9,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedkeel",
}


def check_formats(formats: Sequence[str]) -> None:
    """Raises if a format is unknown, or cannot be written on this machine."""
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"formats = {name!r} is not allowed; it must be one of {', '.join(FORMATS)}")
    if "pgf" in formats and _latex() is None:
        raise ValueError(f"formats: pgf needs LaTeX to measure texts; install one of {', '.join(LATEX)}, or choose pdf")


def _latex() -> str | None:
    return next(filter(shutil.which, LATEX), None)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure to a file. Its format is the ending of the path."""
    from matplotlib import rc_context

    date = {"pdf": "CreationDate", "svg": "Date"}.get(path.suffix[1:])  # Without a date, the same runs give the same bytes.
    options: dict[str, Any] = {"metadata": {date: None}} if date else {}
    with rc_context(FONTS | {"pgf.texsystem": _latex() or LATEX[0], "pgf.rcfonts": False}):
        plot(figure).savefig(path, dpi=200, **options)


def plot(figure: Figure) -> MatplotlibFigure:
    """The matplotlib figure. You can change it, or save it."""
    from fedkeel.engine.notebook_figure import NotebookFigure

    height = 0.5 + 0.26 * len(figure.bars) if isinstance(figure, Bars) else SIZE[1]
    columns = figure.legend_columns
    below = 0.18 * -(-len(figure.legend) // columns)  # inches for the legend
    made = NotebookFigure(figsize=(SIZE[0], height + below), layout="constrained")
    axes = made.add_subplot()
    match figure:
        case Lines():
            _lines(figure, axes)
            made.legend(loc="outside lower center", ncols=columns, frameon=False, handlelength=3.5)
        case Bars():
            _bars(figure, axes)
        case Heat():
            _heat(figure, axes)
        case Bubbles():
            _bubbles(figure, axes)
        case _:
            raise TypeError(f"figure: {type(figure).__name__} cannot be drawn")
    axes.spines[["top", "right"]].set_visible(False)
    return made


def _text(words: str) -> str:
    """A text for matplotlib, which would read the part between two dollar signs as a formula."""
    return words.replace("$", r"\$")


def _scale(axes: Axes, x: Axis, y: Axis) -> None:
    """Limits, ticks and labels as on the page."""
    axes.set(xscale="log" if x.log else "linear", yscale="log" if y.log else "linear")
    axes.set(xlim=(x.low, x.high), ylim=(y.low, y.high), xlabel=_text(x.label), ylabel=_text(y.label))
    for axis, one in ((axes.xaxis, x), (axes.yaxis, y)):
        places, names = zip(*one.ticks(), strict=True) if one.ticks() else ((), ())
        axis.set_ticks(places, [_text(shortened(name, 24)) for name in names])
        axis.set_ticks([], minor=True)
    axes.grid(axis="y", color="#d9dde3", linewidth=0.6)
    axes.set_axisbelow(True)


def _lines(figure: Lines, axes: Axes) -> None:
    _scale(axes, figure.x, figure.y)
    for one in figure.series:
        _line(one, axes, figure)
    for z in figure.targets:
        if figure.y.low < z < figure.y.high:
            axes.axhline(z, color="#5b6470", linewidth=0.8, linestyle=":")
            axes.annotate(f"target {z:g}", (0.01, z), (0, 2), ("axes fraction", "data"), "offset points", color="#5b6470")
    _crosses(figure, axes)


def _line(one: Series, axes: Axes, figure: Lines) -> None:
    colour, dash, marker = style(one.style)
    dashes: Any = (0, tuple(0.5 * float(z) for z in dash.split())) if dash else "-"
    look: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": MARKERS[marker], "markersize": 4}
    x, y, low, high = one.x, [float("nan") if z is None else z for z in one.y], one.low, one.high
    if one.flat:
        x, y, low, high = [figure.x.low, figure.x.high], y * 2, low * 2, high * 2
    marked = [0, 1] if one.flat else one.marked()
    whole = not figure.is_cut()  # Then markers at the edge are drawn as a whole.
    axes.plot(x, y, linewidth=1.4, markevery=marked, clip_on=not whole, label=_text(shortened(one.name, LEGEND)), **look)
    if low:
        axes.fill_between(x, low, high, color=colour, alpha=figure.band_opacity(), linewidth=0)
    rings = [(one.x[i], y[i]) for i in one.ringed]
    axes.plot(*zip(*rings, strict=True), "o", markersize=9, fillstyle="none", color=colour) if rings else None


def _crosses(figure: Lines, axes: Axes) -> None:
    """Lost points, at the edge of the plot. Several at one place are stacked inwards."""
    taken = Counter[float]()
    inward = -9 if figure.lost_at == figure.y.high else 9
    for one in figure.series:
        for z in one.lost:
            axes.annotate(
                "x",
                (z, figure.lost_at),
                (0, inward * taken[z]),
                textcoords="offset points",
                color=style(one.style)[0],
                ha="center",
                va="center",
                fontsize=12,
                annotation_clip=False,
            )
            taken[z] += 1


def _bars(figure: Bars, axes: Axes) -> None:
    places = list(range(len(figure.bars)))
    lengths = [bar.length or 0.0 for bar in figure.bars]
    deviations = [bar.deviation or 0.0 for bar in figure.bars]
    colours = [style(bar.style)[0] for bar in figure.bars]
    axes.barh(places, lengths, color=colours, height=0.65)
    for place, (bar, length, deviation) in enumerate(zip(figure.bars, lengths, deviations, strict=True)):
        if deviation:
            axes.plot([max(length - deviation, 0.0), length + deviation], [place, place], color="#1b1f24", linewidth=1)
        axes.annotate(_text(bar.text), (length + deviation, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [_text(shortened(bar.name, 30)) for bar in figure.bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max((a + b for a, b in zip(lengths, deviations, strict=True)), default=1.0) or 1.0)
    axes.set_xlabel(_text(figure.label))


def _heat(figure: Heat, axes: Axes) -> None:
    from matplotlib import colormaps

    x, y = figure.x, figure.y
    shares = [[float("nan")] * len(x.names) for _ in y.names]
    for j, i, share, text in figure.cells():
        shares[j][i] = float("nan") if share is None else share
        ink = "white" if share is not None and share < 0.45 else "black"
        axes.annotate(text, (i, j), ha="center", va="center", color=ink)
    wide, tall = ([i - 0.5 for i in range(len(one.names) + 1)] for one in (x, y))  # edges of the cells
    axes.pcolormesh(wide, tall, shares, cmap=colormaps["viridis"], vmin=0.0, vmax=1.0, edgecolors="white", linewidth=1)
    slanted = sum(map(len, x.names)) > 50  # they do not fit side by side
    names = [_text(shortened(name, 24)) for name in x.names]
    axes.set_xticks(range(len(names)), names, rotation=45 if slanted else 0, ha="right" if slanted else "center")
    axes.set_yticks(range(len(y.names)), [_text(shortened(name, 24)) for name in y.names])
    axes.tick_params(length=0)
    axes.set_xlabel(_text(x.label))
    axes.set_ylabel(_text(y.label))


def _bubbles(figure: Bubbles, axes: Axes) -> None:
    _scale(axes, figure.x, figure.y)
    width = 72 * min(SIZE[0] / len(figure.counts) * 2.2, SIZE[1] / len(figure.counts[0])) * 0.8  # points
    found = [(i, k, n) for i, row in enumerate(figure.counts) for k, n in enumerate(row) if n]
    sizes = [max(width**2 * n / figure.most, 0.3) for *_, n in found]
    clients, classes = [i for i, *_ in found], [k for _, k, _ in found]
    axes.scatter(clients, classes, sizes, color=figure.colour, alpha=0.8, linewidths=0)
