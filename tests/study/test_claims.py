"""results/claims.md, and what its verdicts follow from."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from fedkeel.files import read_toml
from fedkeel.study.study import Study

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def claims() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "claims.py"))


def test_pages_say_what_the_runs_say(claims: dict[str, Any]) -> None:
    """If this fails: python benchmarks/claims.py"""
    for path, text in claims["files"]().items():
        assert path.read_text() == text, f"{path.name} differs from the runs; write it anew: python benchmarks/claims.py"


def test_verdicts(claims: dict[str, Any]) -> None:
    one, verdict = claims["Comparison"], claims["verdict"]
    yes, no, open_ = one("", True, 5), one("", False, 5), one("", None, 2)
    assert verdict([yes, yes, open_]) == "confirmed"
    assert verdict([yes, no]) == "in part"
    assert verdict([no, open_]) == "not confirmed"
    assert verdict([open_]) == verdict([]) == "not testable here"


def test_interval_is_students(claims: dict[str, Any]) -> None:
    low, high = claims["student_interval"]([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-5)
    assert claims["student_interval"]([0.5, 0.5]) == (0.5, 0.5)


def test_every_folder_of_results_is_linked_and_every_claim_has_numbers_or_a_reason(claims: dict[str, Any]) -> None:
    for claim in read_toml(ROOT / "results" / "claims.toml")["claims"]:
        assert claim.get("compare") or claim["note"], claim["says"]
        for spec in claim.get("compare", []):
            assert (ROOT / "results" / spec["folder"] / "README.md").exists()


def test_every_folder_has_its_command_and_every_study_file_is_valid() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "paper_results.py"))
    folders = {path.parent.name for path in (ROOT / "results").glob("*/runs.tar.xz")}
    assert folders <= set(made["COMMANDS"])
    for path in sorted(made["STUDIES"].glob("*.toml")):
        study = Study.read(read_toml(path))
        assert study.title, path.name
        assert study.about, path.name
        assert all(len(branch.seeds) >= 3 for branch in study.branches), path.name
