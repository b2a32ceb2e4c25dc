"""Tables by name."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeel as fk
from tests.data import formats

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.usefixtures("small")
def test_adult(tmp_path: Path) -> None:
    row = "{}, {}, 1, Bachelors, 13, Married, Sales, Wife, White, Female, 0, 0, 40, United-States, {}\n"
    formats.packed(tmp_path / "adult/adult.data.gz", row.format(20, "Private", "<=50K") + row.format(40, "?", ">50K"))
    formats.packed(tmp_path / "adult/adult.test", "|1x3 Cross validator\n" + row.format(60, "Other", ">50K."))
    data = fk.load("adult", tmp_path)
    assert data.y.tolist() == [0, 1]
    assert data.test is not None
    assert data.test[1].tolist() == [1]
    assert data.x[:, 0].tolist() == [-1, 1]  # age, standardised
    assert data.test[0][0, 0] == 3
    assert sorted(data.x[:, 1:3].sum(0).tolist()) == [1, 1]  # Private, ?
    assert data.test[0][0, 1:3].tolist() == [0, 0]  # a word that occurs in no training row


@pytest.mark.usefixtures("small")
def test_covertype_is_the_same_from_both_files(tmp_path: Path) -> None:
    n = 50
    numeric, wilderness, soil = formats.RNG.integers(0, 3000, (n, 10)), np.arange(n) % 4, np.arange(n) % 40
    table = np.concatenate([numeric, np.eye(4)[wilderness], np.eye(40)[soil], (np.arange(n) % 7 + 1)[:, None]], axis=1)
    formats.packed(tmp_path / "a/covtype.data.gz", "".join(",".join(str(int(z)) for z in row) + "\n" for row in table))
    file = io.BytesIO()
    np.savez(file, numeric=numeric.astype(np.int16), wilderness=wilderness, soil=soil, label=np.arange(n) % 7 + 1)
    formats.put(tmp_path / "b/covertype", {"covtype.npz": file.getvalue()})
    one, two = (fk.load("covertype", tmp_path / folder) for folder in "ab")
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)
    assert one.x.shape == (40, 54)
    assert float(one.x[:, :10].mean(0).abs().max()) < 1e-5
    assert one.x[:, 10:].sum(1).tolist() == [2] * 40
