"""results/bench.md from the rows of results/bench.jsonl: ratios with their spread, and whether the target is met."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from contest import CONTESTANTS, peers
from workloads import WORKLOADS

Row = dict[str, Any]
Times = dict[str, dict[int, float]]
HEAD = "| ratio | median | lowest | highest | target | |\n|---|---|---|---|---|---|"
PEERS = ("plain", "pfl", "fedjax", "flwr")
FLOORS = ("spread", "spread-last", "batched")  # the shortest possible round on all cores
FORMATS = {"c": ">= 1.4", "d": ">= 1.05", "e": ""}  # how much faster a round is in channels_last
SIGNS = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True)
class Line:
    """One line of a table. A target is "<= 1.1" or ">= 5", and is met if the median meets it."""

    name: str
    ratios: Sequence[float]
    target: str = ""

    @property
    def met(self) -> bool | None:
        if not self.target:
            return None
        sign, limit = self.target.split()
        return SIGNS[sign](statistics.median(self.ratios), float(limit))

    def __str__(self) -> str:
        verdict = {None: "", True: "met", False: "**missed**"}[self.met]
        low, middle, high = min(self.ratios), statistics.median(self.ratios), max(self.ratios)
        return f"| {self.name} | {number(middle)} | {number(low)} | {number(high)} | {self.target} | {verdict} |"


def number(z: float) -> str:
    return f"{z:.0f}" if z >= 100 else f"{z:.1f}" if z >= 10 else f"{z:.2f}"


def title(key: str) -> str:
    who = CONTESTANTS[key]
    return f"{who.title} {peers.release(peers.PEERS[who.peer])}" if who.peer else who.title


def passes_of(rows: Iterable[Row]) -> Times:
    """Contestant -> pass -> the seconds of the fastest round."""
    found: Times = {}
    for row in rows:
        if "seconds" in row:
            found.setdefault(row["who"], {})[row["pass"]] = min(row["seconds"])
    return found


def compared(times: Times, a: str, b: str, target: str = "", name: str = "") -> list[Line]:
    """The line of a / b, a ratio for every pass. None if no pass has both."""
    shared = [number for number in times.get(a, {}) if number in times.get(b, {})]
    ratios = [times[a][number] / times[b][number] for number in shared]
    return [Line(name or f"{title(a)} / {title(b)}", ratios, target)] if ratios else []


def quickest(times: Times, among: Iterable[str]) -> str:
    """The contestant with the fastest median pass; "" if none took part."""
    here = [key for key in among if key in times]
    return min(here, key=lambda key: statistics.median(times[key].values()), default="")


FASTEST = {"a": ">= 2"} | dict.fromkeys("cdef", ">= 1.5")  # how much slower the fastest peer must be
SINGLE = {"a": {"flwr": ">= 5"}, "b": {"plain": ">= 10"}} | {key: {"plain": ">= 1"} for key in "jk"}  # and a single one


def contest_lines(section: str, times: Times) -> list[Line]:
    limits = SINGLE.get(section, {})
    lines = [line for key in PEERS for line in compared(times, key, "fedkeel", limits.get(key, ""))]
    # Where there are two memory formats, the best of fedkeel's counts.
    ours = quickest(times, ("fedkeel", "fedkeel-last"))
    if section in FASTEST and ours and (fastest := quickest(times, PEERS)):
        name = f"the fastest peer ({title(fastest)}) / {title(ours)}"
        lines += compared(times, fastest, ours, FASTEST[section], name)
    if section == "b":
        lines += compared(times, "plain", "compiled")
    bound = {"a": "<= 1.20", "b": ""}.get(section, "<= 1.10")
    floor = quickest(times, FLOORS)
    for key in FLOORS:
        lines += compared(times, ours, key, bound if key == floor else "")
    bare = quickest(times, ("bare", "bare-last"))
    lines += compared(times, quickest(times, ("sequential", "sequential-last")), bare, "<= 1.10")
    lines += compared(times, "sequential", "sequential-last", FORMATS.get(section, ""))
    lines += compared(times, "sequential-padded", "sequential", ">= 1.6")
    if section == "a":
        lines += compared(times, "sequential", "fedkeel", ">= 1.7")
        lines += compared(times, "bare", "spread")  # the best speed-up that the cores of this machine give
    return lines


def remarks(rows: Iterable[Row]) -> list[str]:
    """Contestants that could not take part, and facts that the others reported."""
    notes: dict[str, str] = {}
    for row in rows:
        if "missing" in row:
            notes[row["who"]] = f"{title(row['who'])} is not in the table: {row['missing']}"
        elif "engine" in row:
            notes[row["who"]] = f"auto chose `{row['engine']}` ({row['why']})"
        elif "threads" in row:
            notes[row["who"]] = (
                f"{title(row['who'])} with {row['threads']} thread{'s' * (row['threads'] > 1)}, the faster way"
            )
    return list(notes.values())


def contest_section(section: str, rows: list[Row]) -> str:
    w, times = WORKLOADS[section], passes_of(rows)
    lines = contest_lines(section, times)
    count = max((len(z) for z in times.values()), default=0)
    parts = [f"## ({section}) {w.title}", "", f"{w.sizes}; {count} passes of {w.rounds} rounds.", ""]
    parts += [HEAD, *map(str, lines), ""] if lines else []
    parts += [f"- {remark}" for remark in remarks(rows)]
    return "\n".join(parts).rstrip() + "\n"
