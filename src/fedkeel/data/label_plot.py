"""A picture of a split: one bubble per client and class, as in the GradMA paper. Its area shows the number of samples."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedkeel.data.federation import Federation

MOST = 100  # clients in the picture
MOST_IN_HTML = 40  # clients and classes in the picture that a notebook shows
CELL, MARGIN = 16, 56  # pixels of a cell, and around the picture
COLOUR = "#2b6cb0"
SIGNS = " ·∙•●⬤"  # from no samples to most


def split_html(fed: Federation) -> str:
    """The text of a federation and a picture of its first clients and classes."""
    text = f"<p>{escape(repr(fed)).removeprefix('Federation(').removesuffix(')')}</p>"
    if fed.y is None or fed.y.is_floating_point() or fed.y.dim() > 1:
        return text
    counts = fed.label_counts(fed.classes or int(fed.y.max()) + 1)
    shown = counts[:MOST_IN_HTML, :MOST_IN_HTML]
    cut = "" if shown.shape == counts.shape else f"the first {shown.shape[0]} clients and {shown.shape[1]} classes"
    return text + bubbles_svg(shown, cut)


def bubbles_svg(counts: np.ndarray, title: str = "") -> str:
    """An SVG of counts [N, C]. The area of a bubble is proportional to the count. Only the first 100 clients are drawn."""
    width, height = _size(counts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title or "classes against clients")}" font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for x, y, text, anchor in _words(counts, title):
        parts.append(f'<text x="{x}" y="{y + 3}" text-anchor="{anchor}" fill="#333">{escape(text)}</text>')
    for x, y, r, client, label in _circles(counts):
        tip = f"client {client}, class {label}: {counts[client, label]}"
        parts.append(f'<circle cx="{x}" cy="{y}" r="{r:.2f}" fill="{COLOUR}"><title>{tip}</title></circle>')
    return "\n".join([*parts, "</svg>"])


def write_bubbles(counts: np.ndarray, path: Path, title: str = "") -> None:
    """Writes the picture as .svg, .html or .png."""
    kind = path.suffix.lower()
    if kind not in (".svg", ".html", ".png"):
        raise ValueError(f"plot = {str(path)!r} is not allowed; it must end in .svg, .html or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".png":
        return _write_png(counts, path, title)
    page = f'<!doctype html><meta charset="utf-8"><title>{escape(title)}</title>\n'
    path.write_text((page if kind == ".html" else "") + bubbles_svg(counts, title) + "\n", encoding="utf-8")


def _write_png(counts: np.ndarray, path: Path, title: str) -> None:
    from PIL import Image, ImageDraw, ImageFont

    sharp = 3  # drawn three times as large and then scaled down, for smooth edges
    width, height = _size(counts)
    picture = Image.new("RGB", (width * sharp, height * sharp), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(10 * sharp)
    for x, y, text, anchor in _words(counts, title):
        place = {"middle": "mm", "end": "rm", "start": "lm"}[anchor]
        draw.text((x * sharp, y * sharp), text, fill="#333", font=font, anchor=place)
    for x, y, r, _, _ in _circles(counts):
        draw.ellipse([(x - r) * sharp, (y - r) * sharp, (x + r) * sharp, (y + r) * sharp], fill=COLOUR)
    picture.resize((width, height), Image.Resampling.LANCZOS).save(path)


def _size(counts: np.ndarray) -> tuple[int, int]:
    N, C = counts[:MOST].shape
    return max(CELL * N + 2 * MARGIN, 320), CELL * C + 2 * MARGIN


def _circles(counts: np.ndarray) -> Iterator[tuple[float, float, float, int, int]]:
    """(x, y, r, client, class); class 0 is at the bottom."""
    shown = counts[:MOST]
    scale = CELL * 0.62 / np.sqrt(max(shown.max(), 1))
    for client, label in zip(*np.nonzero(shown), strict=True):
        x, y = MARGIN + CELL * (client + 0.5), MARGIN + CELL * (shown.shape[1] - label - 0.5)
        yield x, y, float(max(scale * np.sqrt(shown[client, label]), 0.6)), int(client), int(label)


def _words(counts: np.ndarray, title: str) -> Iterator[tuple[float, float, str, str]]:
    """(x, y, text, anchor) of title, axes and their numbers."""
    N, C = counts[:MOST].shape
    height = _size(counts)[1]
    rest = f", {N} of {len(counts):,}" if len(counts) > N else ""
    yield MARGIN, MARGIN / 3, title, "start"
    yield MARGIN + CELL * N / 2, height - MARGIN / 3, f"client{rest}", "middle"
    yield MARGIN - 8, MARGIN - 12, "class", "end"
    for client in range(0, N, max(1, -(-N // 20))):
        yield MARGIN + CELL * (client + 0.5), height - MARGIN + 12, str(client), "middle"
    for label in range(0, C, max(1, -(-C // 60))):
        yield MARGIN - 8, MARGIN + CELL * (C - label - 0.5), str(label), "end"


def bubbles_text(counts: np.ndarray, width: int, rows: int = 24) -> str:
    """The picture in characters, one column per client. Only the first clients and classes are drawn."""
    shown = counts[: min(MOST, max(1, width - 8)), :rows]
    share = np.sqrt(shown / max(shown.max(), 1))
    signs = np.array(list(SIGNS))[np.ceil(share * (len(SIGNS) - 1)).astype(int)]
    lines = [f"{label:>6} {''.join(signs[:, label])}".rstrip() for label in reversed(range(shown.shape[1]))]
    parts = [f"{shown.shape[i]} of {counts.shape[i]:,} {what}" for i, what in enumerate(("clients", "classes"))]
    lines.append(f" class   clients 0 to {len(shown) - 1}; the largest has {shown.max():,} samples of a class")
    if shown.shape != counts.shape:
        lines.append(f"        (drawn are {' and '.join(parts)})")
    return "\n".join(lines)
