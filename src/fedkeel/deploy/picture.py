"""A drawing of who keeps what and what travels, made from a method's records."""

from __future__ import annotations

from html import escape
from typing import Any

import torch

from fedkeel.core.algorithm import Algorithm, Plan
from fedkeel.core.flat import Layers
from fedkeel.core.records import Record, down_record, floats, trial_upload

D = 1009  # the model size in the trial; no other dimension of a record has it, so it is printed as d
N = 10
LINE = 18  # pixels


def fields(record: Record | None, tracked: tuple[str, ...] = ()) -> list[str]:
    """The fields of a record with their shapes, such as "dx [d]". Empty tensors are left out."""
    named = [] if record is None else record._asdict().items()
    return [
        f"{name} [{', '.join('d' if n == D else str(n) for n in z.shape)}]" + (" (if it tracks)" if name in tracked else "")
        for name, z in named
        if z.numel()
    ]


def drawing(algo: Algorithm) -> str:
    """An SVG: what the server keeps, what a client keeps, and what travels between them in a round."""
    algo = algo.plan(Plan(N=N, S=N, K=1.0, T=100))
    server, client = algo.init(torch.zeros(D))
    up, first, down = _upload(algo, "client"), None, down_record(algo, server)
    tracked = algo.facts.tracked
    travels = [("down", f"request: {' '.join(fields(down))}"), ("up", f"reply: {' '.join(fields(up, tracked))}")]
    if algo.surveys(0):
        first = _upload(algo, "survey")
        travels.insert(1, ("up", f"first: {' '.join(fields(first))}"))
    if algo.warms_up():
        travels.insert(0, ("up", f"once, before round 0: {' '.join(fields(_upload(algo, 'warmup')))}"))
    keeps = fields(client) or ["nothing"]
    if algo.facts.private:
        keeps = ["its normalisation layers"]
    on_server = ["keeps", *fields(server), "", "knows", "n of every client", "which record each", "client starts from"]
    on_client = ["keeps", *keeps, "in Flower's Context", "and in a file, mode 0600", "", "never sends", "its data"]
    sent = (floats(up) + (floats(first) if first else 0)) // D
    cost = f"d = model size; {floats(down) // D} d floats down, {sent} d up per client and round"
    return _svg(algo.name, on_server, on_client, travels, cost)


def _upload(algo: Algorithm, stage: str) -> Any:
    return trial_upload(algo, stage, Layers([D - 9, 9]), torch.float32)


def _svg(name: str, on_server: list[str], on_client: list[str], travels: list[tuple[str, str]], cost: str) -> str:
    height = max(len(on_server), len(on_client), 2 * len(travels) + 1) * LINE + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="860" height="{height + 70}" viewBox="0 0 860 {height + 70}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="860" height="{height + 70}" fill="white"/>',
        f'<text x="430" y="24" text-anchor="middle" font-size="16" font-weight="bold">{escape(name)}, deployed</text>',
        *_box(20, height, "server (SuperLink)", on_server),
        *_box(640, height, "client i (SuperNode)", on_client),
    ]
    for i, (direction, words) in enumerate(travels):
        y = 100 + 2 * i * LINE
        start, end, tip = (225, 635, 627) if direction == "down" else (635, 225, 233)
        parts.append(f'<line x1="{start}" y1="{y}" x2="{tip}" y2="{y}" stroke="#246" stroke-width="2"/>')
        parts.append(f'<path d="M{end} {y} L{tip} {y - 5} L{tip} {y + 5} Z" fill="#246"/>')
        parts.append(f'<text x="430" y="{y - 6}" text-anchor="middle">{escape(words)}</text>')
    parts.append(f'<text x="430" y="{height + 56}" text-anchor="middle" fill="#555">{escape(cost)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _box(x: int, height: int, title: str, lines: list[str]) -> list[str]:
    parts = [
        f'<rect x="{x}" y="40" width="200" height="{height - 10}" rx="8" fill="#eef3f8" stroke="#246"/>',
        f'<text x="{x + 100}" y="60" text-anchor="middle" font-weight="bold">{escape(title)}</text>',
    ]
    for i, line in enumerate(lines):
        heading = ' font-style="italic" fill="#246"' if line in ("keeps", "knows", "never sends") else ""
        parts.append(f'<text x="{x + 14}" y="{84 + i * LINE}"{heading}>{escape(line)}</text>')
    return parts
