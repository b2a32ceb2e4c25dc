"""How the budget of `choose` is spent: the same number of rounds for the tuning of every candidate, the rest for finalists.

A budget is counted in full runs. At most half of it goes to the finalists. What is left is divided equally. Each candidate
spends its part in units of a few rounds: about half of the units on short trials, the others on making the best trials
twice as long, then the best of these, and so on (successive halving).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedkeel.errors import refuse
from fedkeel.study.results.significance import fewest_seeds
from fedkeel.study.running.tuning import Spending

FORMS = "a number of runs (100 or '100runs'), or a time such as '60min' or '2h'"
LEAST = 8  # units of a candidate, if its part is smaller than two full runs
SECONDS = {"s": 1, "min": 60, "h": 3600}
FINALISTS = (4, 3, 2)


def read_budget(given: int | str) -> tuple[int | None, float | None]:
    """(runs, None) or (None, seconds)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(runs?|s|min|h)?", str(given).strip())
    if isinstance(given, bool) or found is None or float(found[1]) <= 0:
        raise refuse("budget", given, FORMS)
    if found[2] in SECONDS:
        return None, float(found[1]) * SECONDS[found[2]]
    if not float(found[1]).is_integer():
        raise refuse("budget", given, FORMS)
    return int(float(found[1])), None


@dataclass(frozen=True)
class Budget:
    runs: int  # full runs in total
    rounds: int  # of a full run
    candidates: int
    finalists: int
    seeds: int  # of each finalist
    tuning: Spending  # of every candidate


def divide(runs: int, rounds: int, candidates: int, seeds: int | None = None, whole: bool = False) -> Budget:
    """whole: trials cannot be made longer, because their learning rates depend on the number of rounds."""
    finalists, found = _finals(runs, candidates)
    seeds = seeds or found
    part = (runs - finalists * seeds) * rounds // candidates
    unit = rounds if whole else max(1, min(rounds // 4, part // LEAST))
    units = part // unit
    if units < (3 if whole else LEAST):
        each = 3 * rounds if whole else LEAST
        needed = finalists * seeds - (-each * candidates // rounds)
        raise refuse("budget", f"{runs} runs", f"at least {needed} for {candidates} methods of {rounds} rounds each")
    longer = [] if whole else _halving(units, rounds // unit)
    explore = units - sum(count * 2**level // 2 for level, count in enumerate(longer, 1))
    stages = tuple((count, unit * 2**level) for level, count in enumerate(longer, 1))
    return Budget(runs, rounds, candidates, finalists, seeds, Spending(unit, explore, stages))


def _finals(runs: int, candidates: int) -> tuple[int, int]:
    """(finalists, seeds): as many as half of the budget allows, with enough seeds for a significant difference."""
    for count in FINALISTS:
        seeds = fewest_seeds(count * (count - 1) // 2)
        if count <= candidates and count * seeds <= runs / 2:
            return count, seeds
    count = min(2, candidates)
    return count, max(2, runs // 2 // count)


def _halving(units: int, longest: int) -> list[int]:
    """How many trials become 2, 4, 8, ... units long. At least three short trials must be affordable beside them."""
    found: list[int] = []
    left, level = units, 1
    while 2**level <= longest:
        count = max(1, units // 2 ** (level + 1) // 2 ** (level - 1))
        if left - count * 2 ** (level - 1) < max(3, count):
            break
        found.append(count)
        left -= count * 2 ** (level - 1)
        level += 1
    return found
