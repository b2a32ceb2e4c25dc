"""Draws who keeps what and what travels in a round of a method, from its records."""

from __future__ import annotations

from html import escape
from typing import Any, get_type_hints

import torch

from fedkeel.core.algorithm import Algorithm, Plan
from fedkeel.core.records import down_record, exchanges_of, small_layers, trial_upload

LAYERS = small_layers(2)
WIDTH, BOX, ROW = 720, 210, 20


def picture(kind: type[Algorithm]) -> str:
    """An SVG that takes its colours from the page, so that it fits light and dark."""
    method = kind().plan(Plan(N=1, S=1, K=1.0, T=1, layers=LAYERS))
    server, client = method.init(torch.zeros(sum(LAYERS.sizes)))
    down = _fields(down_record(method, server))
    up = [name for stage in exchanges_of(method) for name in _fields(trial_upload(method, stage, LAYERS, torch.float32))]
    keeps, memory = _fields(server), _fields(client) if client is not None else ["nothing"]
    rows = max(len(keeps), len(memory), 2)
    height = 70 + ROW * rows
    middle = 46 + ROW * rows / 2
    right = WIDTH - BOX - 10
    parts = [
        f'<svg class="records" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="who keeps what and what travels">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>',
        _box(10, "the server keeps", keeps, height),
        _box(right, "each client keeps", memory, height),
        _arrow(BOX + 20, right - 10, middle - 14, "down: " + ", ".join(down)),
        _arrow(right - 10, BOX + 20, middle + 22, "up: " + ", ".join(dict.fromkeys(up))),
        "</svg>",
    ]
    return "".join(parts)


def _fields(record: Any) -> list[str]:
    """The fields that are not empty. An option of the method fills the others."""
    return [name for name in get_type_hints(type(record)) or record._fields if getattr(record, name).numel()]


def _box(x: float, title: str, names: list[str], height: float) -> str:
    rows = "".join(
        f'<text x="{x + BOX / 2}" y="{62 + ROW * i}" class="field">{escape(n)}</text>' for i, n in enumerate(names)
    )
    return (
        f'<rect x="{x}" y="10" width="{BOX}" height="{height - 20}" rx="8"/>'
        f'<text x="{x + BOX / 2}" y="34" class="title">{title}</text>{rows}'
    )


def _arrow(start: float, end: float, y: float, label: str) -> str:
    return (
        f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}" marker-end="url(#tip)"/>'
        f'<text x="{(start + end) / 2}" y="{y - 7}" class="label">{escape(label)}</text>'
    )
