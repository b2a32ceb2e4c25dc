"""Paired differences: p-values against their definition, Holm's correction by hand, and what few seeds allow to conclude."""

import itertools
import math

import numpy as np
import pytest

from fedkeel.study.results import significance
from fedkeel.study.results.significance import fewest_seeds, holm, interval, paired_differences, sign_flip_p, smallest_p


def by_enumeration(values):
    """The share of sign patterns whose sum is at least as extreme, in exact arithmetic."""
    total = abs(sum(values))
    patterns = list(itertools.product((1, -1), repeat=len(values)))
    return sum(abs(sum(s * z for s, z in zip(signs, values, strict=True))) >= total for signs in patterns) / len(patterns)


@pytest.mark.parametrize("values", [[3, 1, 2], [3, -1, 2, 5], [4, 4, -4, 4, 1, 7], [1, -1], [2, 2, 2, 2, 2, 2, 2, 2]])
def test_p_is_the_share_of_sign_patterns(values):
    assert sign_flip_p(values) == pytest.approx(by_enumeration(values))
    assert sign_flip_p([-z for z in values]) == pytest.approx(by_enumeration(values))


def test_rounding_does_not_break_ties():
    """0.1 + 0.2 and 0.3 are equal scores, whatever their last bits say."""
    assert sign_flip_p([0.1, 0.2, -0.3, 0.3]) == by_enumeration([1, 2, -3, 3])


def test_equal_scores_are_no_difference():
    assert sign_flip_p([0.0, 0.0, 0.0]) == 1.0
    assert interval([0.5, 0.5]) == (0.5, 0.5)


def test_many_seeds_are_sampled_the_same_way_every_time():
    values = np.random.default_rng(0).normal(0.5, 1, 30).tolist()
    assert sign_flip_p(values) == sign_flip_p(values)
    assert 0 < sign_flip_p(values) < 0.1


def test_least_p_and_fewest_seeds():
    assert [smallest_p(n) for n in (1, 2, 3, 6)] == [1.0, 0.5, 0.25, 0.03125]
    for n in (2, 3, 5):
        assert sign_flip_p([1.0] * n) == smallest_p(n)
    for tests in (1, 3, 45):
        n = fewest_seeds(tests)
        assert tests * smallest_p(n) <= 0.05 < tests * smallest_p(n - 1)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_interval_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(100):
        low, high = interval(rng.normal(1.0, 1.0, 20))
        inside += low <= 1.0 <= high
    assert inside >= 85


def test_differences_are_paired_over_common_seeds():
    scores = {"a": {0: 0.9, 1: 0.8, 2: 0.7}, "b": {0: 0.8, 1: 0.7, 2: 0.6, 3: 0.0}, "c": {5: 0.1}}
    ab, ac, bc = paired_differences(scores)
    assert (ab["method"], ab["other"], ab["seeds"]) == ("a", "b", 3)
    assert ab["difference"] == pytest.approx(0.1)
    assert ab["low"] == pytest.approx(0.1)
    assert ab["high"] == pytest.approx(0.1)
    assert ab["p"] == 0.25  # one test, so there is nothing to correct
    assert ac["seeds"] == 0
    assert math.isnan(ac["difference"])
    assert math.isnan(bc["p"])


def test_few_seeds_are_said_to_be_few():
    three = paired_differences({name: {s: float(place + s) for s in range(3)} for place, name in enumerate("abc")})
    assert "cannot go below 0.25" in significance.note(three)
    assert "at least 7 seeds" in significance.note(three)
    seven = paired_differences({name: {s: float(place + s) for s in range(7)} for place, name in enumerate("abc")})
    assert "cannot" not in significance.note(seven)
    assert all(row["p"] < 0.05 for row in seven)
    assert significance.indistinguishable("c", three) == ["a", "b"]
    assert significance.indistinguishable("c", seven) == []


def test_equal_methods_are_rarely_called_different():
    """Four equal methods, eight seeds: at most 5 % of studies may claim any difference, plus what chance allows."""
    rng = np.random.default_rng(2)
    studies = 60
    claims = 0
    for _ in range(studies):
        scores = {name: dict(enumerate(rng.normal(0.9, 0.01, 8))) for name in "abcd"}
        values = [
            [a - b for a, b in zip(scores[i].values(), scores[j].values(), strict=True)]
            for i, j in itertools.combinations("abcd", 2)
        ]
        claims += min(holm([sign_flip_p(z) for z in values])) < 0.05
    assert claims <= 8  # 3 are expected at most; more than 8 of 60 would have a chance below 1 %


# What matters, groups, and how many seeds are needed ---


def test_a_difference_below_what_matters_is_no_difference():
    """Equal clients without noise: two methods that do the same differ by rounding, always in the same direction."""
    scores = {"a": dict.fromkeys(range(8), 0.9 + 4e-8), "b": dict.fromkeys(range(8), 0.9)}
    (row,) = significance.paired_differences(scores)
    assert row["p"] < 0.05
    assert not significance.distinct(row)
    assert significance.indistinguishable("a", [row]) == ["b"]
    assert "too small to matter" in significance.note([row])
    losses = {"a": dict.fromkeys(range(8), 1e-5), "b": dict.fromkeys(range(8), 5e-5)}
    assert significance.distinct(significance.paired_differences(losses, first_loss=1.0)[0])
    assert not significance.distinct(significance.paired_differences(losses, first_loss=100.0)[0])  # rounding


def test_groups_share_letters_where_methods_cannot_be_told_apart():
    def row(one, other, p):
        return {"method": one, "other": other, "p": p, "matters": True}

    rows = [row("a", "b", 0.5), row("a", "c", 0.01), row("b", "c", 0.3)]
    assert significance.groups(["a", "b", "c"], rows) == {"a": "a", "b": "ab", "c": "b"}
    rows = [row("a", "b", 0.01), row("a", "c", 0.01), row("b", "c", 0.01)]
    assert significance.groups(["a", "b", "c"], rows) == {"a": "a", "b": "b", "c": "c"}


def test_the_seeds_that_are_said_to_be_needed_find_the_difference_four_times_in_five():
    rng = np.random.default_rng(0)
    effect = 1.2  # in standard deviations
    pilot = rng.normal(size=8)
    pilot = (pilot - pilot.mean()) / pilot.std(ddof=1) + effect
    n = significance.seeds_needed(pilot)
    found = sum(significance.sign_flip_p(effect + rng.normal(size=n)) < 0.05 for _ in range(200))
    assert 0.7 < found / 200 < 0.95
    assert significance.seeds_needed([0.1, 0.1, 0.1]) == significance.fewest_seeds(1)
    assert significance.seeds_needed([1.0, -1.0001, 1.0, -1.0]) is None


@pytest.mark.parametrize("noise", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_identical_methods_are_rarely_called_different(noise):
    """200 studies of four identical methods: at most 5 % claim a difference, and what chance allows."""
    rng = np.random.default_rng(0)
    claims = 0
    for _ in range(200):
        split = rng.normal(size=8)  # what all methods share for a seed
        scores = {name: dict(enumerate(split + noise * rng.normal(size=8))) for name in "abcd"}
        claims += any(map(significance.distinct, significance.paired_differences(scores)))
    assert claims <= 0.05 * 200 + 3 * math.sqrt(200 * 0.05 * 0.95)
    assert noise or not claims
