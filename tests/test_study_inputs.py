"""Slips of the pen in study files and commands: each is one line that names what is wrong; ranges of whole numbers."""

import re

import pytest

from fedkeel.study.study import Study

TASK = {"clients": 10, "rounds": 2, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}


def read(**changes):
    return Study.read(TASK | {"methods": {"fedavg": {}}} | changes)


# Ranges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "axis", "ends", "values"),
    [
        ("fedavg", "local_steps", (1, 100), [1, 10, 100]),
        ("fedavg", "cohort", (1, 10), [1, 10]),
        ("fedavg", "cohort", (0.1, 1.0), [0.1, 1.0]),
        ("gradma", "memory", (10, 100), [10, 100]),
        ("fadamet", "tracking", (1, 3), [1, 3]),
        ("fedavg", "lr", (1, 10), [1.0, 10.0]),
        ("padamfed", "steps", (1, 10), [1, 10]),  # what the axis is called elsewhere
    ],
)
def test_a_range_of_counts_has_whole_numbers(method, axis, ends, values):
    table = {"over": {"steps": "local_steps"}} if axis == "steps" else {}
    study = read(methods={method: table}, sweep={axis: {"from": ends[0], "to": ends[1], "per_decade": 1}})
    assert [(z, type(z)) for z in study.axes[axis]] == [(z, type(z)) for z in values]


def test_whole_numbers_of_a_range_are_not_there_twice():
    assert read(sweep={"local_steps": {"from": 1, "to": 3, "per_decade": 9}}).axes["local_steps"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"from": 0.1, "to": float("inf")}, "sweep.lr.to = inf is not allowed: input should be a finite number"),
        ({"from": 0, "to": 1.0}, "sweep.lr.from = 0 is not allowed: input should be greater than 0"),
        ({"from": 0.1, "to": 1.0, "per_decade": 2.5}, "sweep.lr.per_decade = 2.5 is not allowed"),
        ({"from": 0.1}, "sweep.lr.to is missing"),
        ({"from": 0.1, "to": 1.0, "steps": 3}, "sweep.lr.steps: unknown key; known: from, per_decade, to"),
        ([None], "sweep.lr.0 = None is not allowed: input should be a number, a text, true or false"),
    ],
)
def test_what_is_wrong_with_an_axis(values, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read(sweep={"lr": values})
