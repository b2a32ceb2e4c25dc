"""Are two methods different, or was it chance? Paired differences over seeds, their intervals and p-values.

Two runs with the same seed share the split, the initial weights, the sampling and the batches. So the differences seed by
seed vary less than the scores themselves, and they are what is tested.

- The p-value is that of the exact sign-flip test: if two methods were equal, the sign of every difference would be a coin
  toss. All 2^n sign patterns are tried, so n seeds cannot give a p-value below 2 / 2^n: 0.25 with three seeds.
- The interval is a bootstrap interval. With few seeds it is too narrow, so p decides, not the interval.
- A difference too small to matter is no difference, whatever its p-value: below 0.001 for accuracies (a tenth of a point),
  below a thousandth of the larger loss, and below a millionth of the loss of the first round. Otherwise rounding could
  decide between methods that do the same.
- Several comparisons have p-values corrected by Holm's method: the chance that any of them is wrong stays below alpha.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]
ALPHA = 0.05
LEVEL = 0.95  # of intervals
EXACT = 13  # seeds up to which all sign patterns are tried; with more, a fixed sample of them
RESAMPLES = 1999  # of the bootstrap
Scores = Mapping[int, float]  # seed -> score
SMALLEST = 0.001  # the least difference of accuracies that matters; of losses, as a share of the larger loss
ROUNDING = 1e-6  # the least difference of losses that matters, as a share of the loss of the first round
POWER = 0.8  # chance to find a difference with the number of seeds that is said to be needed
MOST_SEEDS = 1000


def sign_flip_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of the hypothesis that the differences are symmetric around 0."""
    import numpy as np
    from scipy.stats import permutation_test

    values = np.asarray(differences, float)
    if len(values) < 2 or not values.any():
        return 1.0
    # Sums that are equal in exact arithmetic must not differ by rounding, so the test sees rounded values.
    scaled = np.round(values / np.abs(values).max(), 9)
    sample = math.inf if len(values) <= EXACT else 2**EXACT
    found = permutation_test((scaled,), _sum, permutation_type="samples", vectorized=True, n_resamples=sample, rng=0)
    return min(1.0, float(found.pvalue))


def _sum(values: Any, axis: int = -1) -> Any:
    return values.sum(axis=axis).round(6)


def interval(differences: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """(low, high): the bootstrap interval of the mean. One number has no interval: (nan, nan)."""
    import numpy as np
    from scipy.stats import bootstrap

    values = np.asarray(differences, float)
    if len(values) < 2:
        return math.nan, math.nan
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    for method in ("BCa", "percentile"):  # BCa has no answer for some samples of few values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = bootstrap(
                (values,), np.mean, n_resamples=RESAMPLES, confidence_level=level, method=method, rng=0
            ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            break
    return float(found.low), float(found.high)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, corrected for their number by Holm's method."""
    corrected, least = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = least
    return corrected


def smallest_p(seeds: int) -> float:
    """The least p-value that a sign-flip test of this many seeds can have, before any correction."""
    return min(1.0, 2.0 ** (1 - seeds))


def fewest_seeds(comparisons: int, alpha: float = ALPHA) -> int:
    """The least number of seeds with which one of several comparisons can be significant."""
    return 1 + math.ceil(math.log2(max(1, comparisons) / alpha))


def seeds_needed(differences: Sequence[float], comparisons: int = 1, alpha: float = ALPHA) -> int | None:
    """With how many seeds a true difference of this size would be found with a chance of 80 %. None: with too many.

    The power of the paired t-test at the level of the first of Holm's tests; never fewer than the sign-flip test needs.
    """
    import numpy as np
    from scipy.stats import nct, t

    values = np.asarray(differences, float)
    fewest = fewest_seeds(comparisons, alpha)
    if len(values) < 2 or not values.mean():
        return None
    if not values.std():
        return fewest
    effect, level = abs(values.mean()) / values.std(ddof=1), alpha / max(1, comparisons)
    n = np.arange(max(2, fewest), MOST_SEEDS + 1)
    power = nct.sf(t.isf(level / 2, n - 1), n - 1, effect * np.sqrt(n))
    enough = n[np.nan_to_num(power, nan=1.0) >= POWER]  # nan: the effect is so large that the formula overflows
    return int(enough[0]) if len(enough) else None


def distinct(row: Row, alpha: float = ALPHA) -> bool:
    """Are the two methods of a row different: significantly, and by an amount that matters?"""
    p: float = row["p"]
    return bool(p < alpha and row["matters"])  # p is nan if there was no test


def paired_differences(
    scores: Mapping[str, Scores], pairs: Iterable[tuple[str, str]] | None = None, first_loss: float | None = None
) -> list[Row]:
    """One row per pair of methods: method, other, difference (method minus other), low, high, p, seeds and more.

    scores: method -> seed -> score. Only the seeds that both methods have count.
    pairs: which methods to compare; all pairs by default. p is corrected for the number of pairs.
    first_loss: the loss of the first round, if the scores are losses; None: they are accuracies.
    A pair with one common seed has a difference, and neither an interval nor a p-value (nan).
    """
    rows: list[Row] = []
    found: list[list[float]] = []
    for method, other in combinations(scores, 2) if pairs is None else pairs:
        common = [seed for seed in scores[method] if seed in scores[other]]
        values = [scores[method][seed] - scores[other][seed] for seed in common]
        values = [z for z in values if math.isfinite(z)]
        low, high = interval(values)
        mean = math.fsum(values) / len(values) if values else math.nan
        least = SMALLEST
        if first_loss is not None:
            largest = max((abs(scores[one][seed]) for one in (method, other) for seed in common), default=0.0)
            least = max(SMALLEST * largest, ROUNDING * first_loss)
        found.append(values)
        rows.append(
            {
                "method": method,
                "other": other,
                "difference": mean,
                "low": low,
                "high": high,
                "p": sign_flip_p(values) if len(values) > 1 else math.nan,
                "seeds": len(values),
                "matters": abs(mean) >= least and mean != 0,
            }
        )
    tested = [row for row in rows if row["seeds"] > 1]
    for row, values in zip(rows, found, strict=True):
        row["seeds_needed"] = seeds_needed(values, len(tested)) if row["matters"] else None
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p"] = p
    return rows


def indistinguishable(best: str, rows: Sequence[Row], alpha: float = ALPHA) -> list[str]:
    """The methods that these differences cannot tell from the best one, in their order."""
    about_it = [row for row in rows if best in (row["method"], row["other"])]
    return [row["other"] if row["method"] == best else row["method"] for row in about_it if not distinct(row, alpha)]


def groups(ranked: Sequence[str], rows: Sequence[Row]) -> dict[str, str]:
    """Letters for methods in the order of their scores. Methods that share a letter cannot be told apart.

    A group is a stretch of the ranking in which no two methods are distinct. It is as long as possible.
    """
    apart = {frozenset((row["method"], row["other"])) for row in rows if distinct(row)}
    runs: list[range] = []
    for first in range(len(ranked)):
        last = first
        while last + 1 < len(ranked) and all(
            frozenset((ranked[i], ranked[last + 1])) not in apart for i in range(first, last + 1)
        ):
            last += 1
        if not runs or last >= runs[-1].stop:
            runs.append(range(first, last + 1))
    letters = [chr(97 + i) if i < 26 else f"({i + 1})" for i in range(len(runs))]
    return {
        name: "".join(letter for letter, run in zip(letters, runs, strict=True) if i in run) for i, name in enumerate(ranked)
    }


def note(rows: Sequence[Row], alpha: float = ALPHA) -> str:
    """What the number of seeds allows to conclude, in a sentence or two. "" if there is nothing to compare."""
    if not rows:
        return ""
    seeds = max(row["seeds"] for row in rows)
    tests = len([row for row in rows if row["seeds"] > 1])
    if seeds < 2:
        return "One seed has no p-value: a difference may be chance. Give at least two seeds."
    corrected = f"p corrected for {tests} comparison{'s' * (tests != 1)} (Holm)"
    how = f"Paired differences over {seeds} seeds, exact sign-flip test, {corrected}."
    if tests * smallest_p(seeds) > alpha:
        how += (
            f" With {seeds} seeds p cannot go below {smallest_p(seeds):.3g} before the correction, so no difference can be "
            f"significant at {alpha:g}; that takes at least {fewest_seeds(tests, alpha)} seeds."
        )
    if any(row["p"] < alpha and not row["matters"] for row in rows):
        how += (
            f" A difference that is too small to matter does not count: below {SMALLEST:g} for accuracies; below a "
            "thousandth of the larger loss or a millionth of the loss of the first round for losses."
        )
    missing = {row["seeds_needed"] for row in rows if row["seeds"] > 1 and not row["p"] < alpha and row["matters"]}
    if missing:
        needed = [z for z in missing if z is not None]
        most = f"{max(needed)} seeds" if len(needed) == len(missing) else f"more than {MOST_SEEDS} seeds for some"
        how += f" To tell all differences of the size seen here from chance takes about {most} (power {POWER:.0%})."
    return how
