"""What a study came to, for Python: frames, differences, a figure, a page and the best method."""

from __future__ import annotations

import html
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.runs.config import RunConfig, read_settings
from fedkeel.study.report import paper_figures
from fedkeel.study.report.figures import figures
from fedkeel.study.report.page import page
from fedkeel.study.report.write import results_of
from fedkeel.study.results.collect import as_frame, read_origin
from fedkeel.study.results.numbers import better_is_less
from fedkeel.study.running.plan import BranchResult
from fedkeel.study.running.reading import read_study
from fedkeel.study.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from fedkeel.core.algorithm import Algorithm

DIFFERENCES = ("method", "other", "difference", "low", "high", "p", "seeds", "matters", "seeds_needed")


@dataclass(frozen=True, repr=False)
class StudyResult:
    """The result of `fk.compare`, `fk.sweep`, `fk.reproduce` and `fk.choose`."""

    study: Study
    branches: list[BranchResult]  # the histories of all runs
    results: dict[str, Any]  # the content of results.json
    out: Path | None = None  # the directory of all runs, if they are kept

    @classmethod
    def read(cls, path: str | Path) -> StudyResult:
        """The study in a directory, complete or not."""
        path = Path(path)
        results = results_of(path)
        if not (path / "study.toml").exists():
            raise ValueError(f"study: {path} holds a run, not a study")
        study = Study.read(read_settings(path / "study.toml"))
        return cls(study, read_study(study, path / read_origin(path).get("store", ".")), results, path)

    @property
    def frame(self) -> DataFrame:
        """One row per method, setting, seed and round, with the columns of the history."""
        from pandas import DataFrame

        rows = []
        for one in self.branches:
            place: dict[str, Any] = {"case": one.branch.case} if one.branch.case else {}
            place |= {"method": one.branch.method} | one.branch.axes | one.chosen
            for outcome in one.outcomes:
                for row in outcome.history:
                    numbers = {key: z for key, z in row.items() if z is None or isinstance(z, bool | int | float | str)}
                    rows.append(place | {"seed": outcome.seed} | numbers)
        return DataFrame(rows)

    @property
    def table(self) -> DataFrame:
        """One row per method: means and deviations (columns that end in _std) over seeds, and costs to the target."""
        return as_frame(self.results).infer_objects()

    @property
    def differences(self) -> DataFrame:
        """One row per pair of methods: difference (method minus other), its interval low to high, and p, paired over seeds.

        p is that of the exact sign-flip test, corrected by Holm's method. `differences.attrs["note"]` says what the number
        of seeds allows to conclude: with three seeds, p cannot go below 0.25. A difference that is too small to matter has
        matters = False. seeds_needed: with how many seeds a difference of this size would probably be found.
        """
        from pandas import DataFrame

        made = DataFrame(self.results["differences"], columns=list(DIFFERENCES))
        made.attrs = {"note": self.results["significance"], "score": self.results["compared_by"]}
        return made

    @property
    def best(self) -> Algorithm:
        """The method with the best mean score, with its hyper-parameters, as `fk.algorithm` makes it."""
        found = self._best_branch()
        config = found.branch.at(found.chosen, found.branch.seeds[0], self.study.resplit)
        method: Algorithm = config.method
        return method

    @property
    def best_name(self) -> str:
        """The name of the best method, as in the table."""
        return self._best_branch().branch.name

    @property
    def answer(self) -> str:
        """Of `fk.choose`: which method to run, in sentences, and the commands that run it. "" for other studies."""
        choice = self.results.get("choice")
        return "" if choice is None else "\n".join([*choice["answer"], *choice["commands"]])

    def _best_branch(self) -> BranchResult:
        """Validation data decide if there are some; otherwise test data do."""
        score = self.results["compared_by"]
        sign = 1 if better_is_less(score) else -1
        values = {row["name"]: sign * row[score] for row in self.results["rows"] if row.get(score) is not None}
        values = {name: value for name, value in values.items() if value == value}  # without nan
        if not values:
            raise ValueError(f"best: no run of this study has the score {score}")
        best = min(values, key=values.__getitem__)
        return next(one for one in self.branches if one.branch.name == best)

    def config_of(self, method: str | None) -> RunConfig:
        """The settings of a run of this method, named as in the table. If it is not there, the error lists the names."""
        named = {one.branch.name: one for one in self.branches}
        best = self._best_branch().branch.name
        if method not in named:
            what = "which method?" if method is None else f"method: unknown name {method!r};"
            raise ValueError(
                f"{what} the study has {', '.join(named)}; for example --method {shlex.quote(best)}, the best by "
                f"{self.results['compared_by'].replace('_', ' ')}"
            )
        found = named[method]
        return found.branch.at(found.chosen, found.branch.seeds[0], self.study.resplit)

    @property
    def errors(self) -> dict[str, str]:
        """Runs that failed -> why."""
        pairs = [(one.branch.name, z) for one in self.branches for z in one.outcomes if z.error is not None]
        return {f"{name} seed {outcome.seed}": str(outcome.error) for name, outcome in pairs}

    def plot(self) -> Figure:
        """A matplotlib figure: the first one of the page, scores over rounds or over the values of an axis."""
        drawn = figures(self.results)
        if not drawn:
            raise ValueError("plot: no run of this study is complete")
        return paper_figures.plot(drawn[0])

    def report(self, path: str | Path) -> Path:
        """Writes the page of the study to a file, e.g. study.report("page.html"). The page needs no other file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(self.results, figures(self.results)))
        return path

    def __repr__(self) -> str:
        if self.answer:
            return self.answer
        score = self.results["compared_by"]
        lines = []
        for row in self.results["rows"]:
            mean, deviation = row.get(score), row.get(f"{score}_std")
            spread = f" ± {deviation:.4g}" if deviation is not None else ""
            lines.append(f"  {row['name']}: " + ("failed" if mean is None else f"{mean:.4g}{spread}"))
        seeds = self.results["seeds"]
        head = f"study of {len(lines)} method{'s' * (len(lines) != 1)}, {len(seeds)} seed{'s' * (len(seeds) != 1)}"
        return "\n".join([f"{head}: {score.replace('_', ' ')}", *lines, *filter(None, [self.results["significance"]])])

    def _repr_html_(self) -> str:
        if self.answer:
            return f"<pre>{html.escape(self.answer)}</pre>"
        score, table = self.results["compared_by"], self.table
        columns = {"name": "", score: score.replace("_", " "), f"{score}_std": "deviation", "seeds": "seeds"}
        shown = table[[name for name in columns if name in table]].rename(columns=columns)
        return (
            f"{shown.to_html(index=False, float_format='{:.4g}'.format)}<p>{html.escape(self.results['significance'])}</p>"
        )
