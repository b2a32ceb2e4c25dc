"""The picture of a split: which client has which classes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from fedkeel.data.label_plot import bubbles_svg, bubbles_text, write_bubbles
from fedkeel.data.load import load

COUNTS = np.array([[4, 0, 1], [0, 16, 0]])


def test_bubbles_have_areas_in_proportion() -> None:
    root = ElementTree.fromstring(bubbles_svg(COUNTS, "a < b"))
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    radii = {circle[0].text: float(circle.attrib["r"]) for circle in circles}
    assert set(radii) == {"client 0, class 0: 4", "client 0, class 2: 1", "client 1, class 1: 16"}
    assert radii["client 1, class 1: 16"] == pytest.approx(2 * radii["client 0, class 0: 4"], abs=0.02)
    assert radii["client 0, class 0: 4"] == pytest.approx(2 * radii["client 0, class 2: 1"], abs=0.02)


def test_bubbles_in_files_and_characters(tmp_path: Path) -> None:
    for name in ("a.svg", "b/c.html"):
        write_bubbles(COUNTS, tmp_path / name, "split")
        assert "<circle" in (tmp_path / name).read_text()
    with pytest.raises(ValueError, match=r"plot = '.*d\.gif' is not allowed; it must end in \.svg, \.html or \.png"):
        write_bubbles(COUNTS, tmp_path / "d.gif")
    lines = bubbles_text(COUNTS, 80).splitlines()
    assert [line[7:] for line in lines[:3]] == ["∙", " ⬤", "•"]
    assert "drawn are 72 of 1,000 clients and 24 of 50 classes" in bubbles_text(np.ones((1000, 50), dtype=int), 80)


def test_bubbles_as_png(tmp_path: Path) -> None:
    write_bubbles(COUNTS, tmp_path / "a.png", "split")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] >= 320
        assert len(np.unique(np.asarray(picture.convert("RGB")))) > 2


def test_label_counts() -> None:
    fed = load("digits").split("dirichlet_per_class", clients=7, concentration=0.5)
    expected = [np.bincount(fed[i].y.numpy(), minlength=10).tolist() for i in range(7)]
    assert fed.label_counts(10).tolist() == expected
    assert torch.equal(torch.from_numpy(fed.label_counts(10).sum(1)), torch.from_numpy(fed.sizes))
