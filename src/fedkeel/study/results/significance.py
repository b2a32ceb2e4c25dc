"""Are two methods different, or was it chance? Paired differences over seeds, their intervals and p-values.

Two runs with the same seed share the split, the initial weights, the sampling and the batches. So the differences seed by
seed vary less than the scores themselves, and they are what is tested.

- The p-value is that of the exact sign-flip test: if two methods were equal, the sign of every difference would be a coin
  toss. All 2^n sign patterns are tried, so n seeds cannot give a p-value below 2 / 2^n: 0.25 with three seeds.
- The interval is a bootstrap interval. With few seeds it is too narrow, so p decides, not the interval.
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


def paired_differences(scores: Mapping[str, Scores], pairs: Iterable[tuple[str, str]] | None = None) -> list[Row]:
    """One row per pair of methods: method, other, difference (method minus other), low, high, p and seeds.

    scores: method -> seed -> score. Only the seeds that both methods have count.
    pairs: which methods to compare; all pairs by default. p is corrected for the number of pairs.
    A pair with one common seed has a difference, and neither an interval nor a p-value (nan).
    """
    rows: list[Row] = []
    for method, other in combinations(scores, 2) if pairs is None else pairs:
        common = [seed for seed in scores[method] if seed in scores[other]]
        values = [scores[method][seed] - scores[other][seed] for seed in common]
        values = [z for z in values if math.isfinite(z)]
        low, high = interval(values)
        rows.append(
            {
                "method": method,
                "other": other,
                "difference": math.fsum(values) / len(values) if values else math.nan,
                "low": low,
                "high": high,
                "p": sign_flip_p(values) if len(values) > 1 else math.nan,
                "seeds": len(values),
            }
        )
    tested = [row for row in rows if row["seeds"] > 1]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p"] = p
    return rows


def indistinguishable(best: str, rows: Sequence[Row], alpha: float = ALPHA) -> list[str]:
    """The methods that these differences cannot tell from the best one, in their order."""
    about_it = [row for row in rows if best in (row["method"], row["other"])]
    # p is nan if there was no test.
    return [row["other"] if row["method"] == best else row["method"] for row in about_it if not row["p"] < alpha]


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
    return how
