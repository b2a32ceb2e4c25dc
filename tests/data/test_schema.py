"""A schema: made once from the training data, saved with a run, and the same class numbers and scales at every site."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.data.schema import Column, Schema
from tests.data import formats

HEADING = "age,blood,state"


def patients(rows: int, seed: int, only: str | None = None) -> list[str]:
    """Patients who are ill if they are over 50."""
    rng = np.random.default_rng(seed)
    made = []
    while len(made) < rows:
        age, blood = int(rng.integers(20, 80)), "AB0"[int(rng.integers(3))]
        state = "ill" if age > 50 else "healthy"
        if only in (None, state):
            made.append(f"{age},{blood},{state}")
    return made


def table(path: Path, rows: list[str], heading: str = HEADING) -> Path:
    path.write_text("\n".join([heading, *rows]) + "\n")
    return path


def test_a_site_with_one_class_does_not_flip_the_labels(tmp_path: Path) -> None:
    """Without a schema, the site with ill patients only would train "ill" as class 0, with its own means."""
    everyone, ill = table(tmp_path / "h0.csv", patients(200, 0)), table(tmp_path / "h1.csv", patients(60, 1, "ill"))
    data = fk.from_csv(everyone)
    assert data.schema is not None
    assert data.schema.classes == ("healthy", "ill")
    with pytest.raises(ValueError, match=r"h1\.csv has the value 'ill' in every row.* pass schema="):
        fk.from_csv(ill)
    site = fk.from_csv(ill, schema=data.schema)
    assert (set(site.y.tolist()), site.classes) == ({1}, 2)
    age = site.x[:, 0] * data.schema.columns[0].std + data.schema.columns[0].mean
    assert age.min() > 50, "standardised by the schema, not by the site"
    fed = fk.Federation.from_arrays([(data.x, data.y), (site.x, site.y)], test=data.test)
    run = fk.train(
        lambda: fk.model("logistic", fed), fed, fk.algorithm("fedavg", lr=0.5), rounds=60, cohort=2, progress=False
    )
    assert run.history[-1]["test_accuracy"] >= 0.85
    flipped = fk.Federation.from_arrays([(data.x, data.y), (site.x, torch.zeros_like(site.y))], test=data.test)
    worse = fk.train(
        lambda: fk.model("logistic", flipped), flipped, fk.algorithm("fedavg", lr=0.5), rounds=20, cohort=2, progress=False
    )
    assert worse.history[-1]["test_accuracy"] < run.history[-1]["test_accuracy"], "what happened before, silently"


def test_a_run_keeps_its_schema(tmp_path: Path) -> None:
    data = fk.from_csv(table(tmp_path / "a.csv", patients(60, 0)))
    fed = data.split("iid", clients=3)
    fk.train(fk.model("logistic", fed), fed, "fedavg", rounds=1, cohort=2, out=tmp_path / "run", progress=False)
    for place in (tmp_path / "run", tmp_path / "run" / "schema.json", str(tmp_path / "run")):
        assert fk.load_schema(place) == data.schema
    again = fk.from_csv(tmp_path / "a.csv", schema=tmp_path / "run")
    assert torch.equal(again.x, data.x)
    assert torch.equal(again.y, data.y)


FIRST = Schema(("healthy", "ill"), "state", None, (Column("age", 50.0, 10.0), Column("blood", words=("A", "B"))))
MISFITS = [
    (HEADING, "30,A,dead", "has the class 'dead' in row 3, which the schema does not know; it knows 'healthy', 'ill'"),
    (HEADING, "30,0,ill", "has '0' in row 3 of the column 'blood', a word that the schema does not know; it knows 'A', 'B'"),
    (HEADING, "old,A,ill", "has 'old' in row 3 of the column 'age', where it must be a finite number"),
    ("years,blood,state", "30,A,ill", "does not fit the schema: it has no column 'age'"),
    ("age,blood,weight,state", "30,A,70,ill", "does not fit the schema, which has no column 'weight'"),
    ("age,blood,result", "30,A,ill", "has no column 'state'"),
]


@pytest.mark.parametrize(("heading", "row", "message"), MISFITS, ids=[message[:40] for _, _, message in MISFITS])
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, heading: str, row: str, message: str) -> None:
    width = heading.count(",")
    good = ",".join([*["40", "B", "1", "1"][:width], "healthy"])
    path = table(tmp_path / "a.csv", [good, row, *[good] * 8], heading)
    with pytest.raises(ValueError, match=re.escape(message)):
        fk.from_csv(path, schema=FIRST)


def test_columns_may_have_another_order(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["ill,B,60"] * 10, "state,blood,age")
    data = fk.from_csv(path, schema=FIRST)
    assert data.x[0].tolist() == [1.0, 0.0, 1.0]
    assert set(data.y.tolist()) == {1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "is not a schema of fedkeel"),
        ('{"format": "fedkeel-schema-1", "classes": ["a"], "klass": 1}', "unknown entry 'klass'"),
        (
            '{"format": "fedkeel-schema-1", "classes": ["a"], "columns": [{"name": "x"}]}',
            "needs either mean and std, or words",
        ),
    ],
)
def test_damaged_schemas_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        fk.load_schema(tmp_path / "s.json")
    with pytest.raises(ValueError, match="cannot read"):
        fk.load_schema(tmp_path / "no.json")


def test_pictures_have_a_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    both = {f"{kind}/p{i % 2}_{i}.png": formats.picture(8)[0] for kind in ("cat", "dog") for i in range(10)}
    formats.put(tmp_path / "all", both)
    formats.put(tmp_path / "site", {f"dog/{i}.png": formats.picture(12)[0] for i in range(10)})
    data = fk.from_folder(tmp_path / "all", key=r"/p(\d)_")
    assert data.schema is not None
    assert data.schema.classes == ("cat", "dog")
    assert data.key is not None
    assert len(data.split("by_key", clients=2)) == 2
    with pytest.raises(ValueError, match=r"has one class, 'dog'.*pass schema="):
        fk.from_folder(tmp_path / "site")
    site = fk.from_folder(tmp_path / "site", schema=data.schema)
    assert set(site.y.tolist()) == {1}
    assert site.x.shape[1:] == data.x.shape[1:], "scaled to the size of the schema"
    assert site.prepare == data.prepare
    formats.put(tmp_path / "site", {"dogs/1.png": formats.picture(12)[0]})
    with pytest.raises(ValueError, match="has the class 'dogs', which the schema does not know; did you mean dog"):
        fk.from_folder(tmp_path / "site", schema=data.schema)
    with pytest.raises(ValueError, match="does not match 'cat/"):
        fk.from_folder(tmp_path / "all", key="nobody")
    with pytest.raises(ValueError, match="describes pictures, not a table"):
        fk.from_csv(table(tmp_path / "a.csv", patients(9, 0)), schema=data.schema)
