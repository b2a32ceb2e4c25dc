"""What to say at the end of a run whose server dropped answers of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

MOST_REASONS = 5  # different reasons that are listed
MOST_CLIENTS = 5  # clients that are named for a reason


def drops(history: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """(dropped answers, expected answers, rounds in which most answers were dropped)."""
    dropped = sum(row["dropped"] for row in history)
    expected = dropped + sum(row["clients"] for row in history)
    return dropped, expected, sum(row["dropped"] > row["clients"] for row in history)


def drops_in_words(history: Sequence[Mapping[str, Any]]) -> str:
    """How many answers were dropped and why; an empty text if there were none."""
    dropped, expected, rounds = drops(history)
    if not dropped:
        return ""
    line = f"{dropped} of {expected} answers of clients were dropped"
    if rounds:
        line += f"; most answers were dropped in {rounds} of {len(history)} rounds"
    return "\n".join([line + ":", *_reasons(history)])


def _reasons(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line per reason: how often, why, and which clients; the most frequent first."""
    counts: Counter[str] = Counter()
    clients: dict[str, list[str]] = {}
    for row in history:
        for client, why in row["faults"].items():
            counts[why] += 1
            if client not in clients.setdefault(why, []):
                clients[why].append(client)
    lines = []
    for why, count in counts.most_common(MOST_REASONS):
        named = sorted(clients[why], key=int)
        more = f" and {len(named) - MOST_CLIENTS} more" if len(named) > MOST_CLIENTS else ""
        lines.append(f"  {count} x {why} (client {', '.join(named[:MOST_CLIENTS])}{more})")
    left = len(counts) - MOST_REASONS
    return [*lines, f"  and {left} more reasons; run.history has all of them"] if left > 0 else lines
