"""`fedkeel report`: the page of a study or of a single run, and its figures and tables as files of their own."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedkeel.engine.state import directory
from fedkeel.files import guarded, read_toml, write_atomically
from fedkeel.runs.config import SETTINGS, RunConfig, read_settings
from fedkeel.runs.saved_config import saved_config
from fedkeel.study.report import paper_figures, svg
from fedkeel.study.report.figure import Figure
from fedkeel.study.report.figures import figures
from fedkeel.study.report.page import page
from fedkeel.study.report.table_text import as_latex
from fedkeel.study.results.collect import ORIGIN, as_csv, collect, read_origin, shown_splits
from fedkeel.study.results.numbers import Outcome
from fedkeel.study.running.plan import BranchResult
from fedkeel.study.running.reading import read_study
from fedkeel.study.study import Study
from fedkeel.wording import file_name


def report(path: str | Path, formats: Sequence[str] = ()) -> Path:
    """Writes report.html to the directory of a study or run, and files to its folder `report`. Returns the page's path.

    A study may be under way: the page shows what is complete.  formats: also draw the figures with matplotlib, for
    papers; any of pdf, pgf, svg, png. Such an SVG replaces the one that is drawn as on the page.
    """
    path = Path(path)
    paper_figures.check_formats(formats)
    return write_report(results_of(path), path, formats)


def results_of(path: Path) -> dict[str, Any]:
    """What a study or run in a directory has found so far."""
    if (path / "study.toml").exists():
        study = Study.read(read_settings(path / "study.toml"))
        lost = {"command": f"not kept ({ORIGIN} is missing); to run it again: fedkeel compare {path / 'study.toml'}"}
        origin = read_origin(path) or lost
        store = path / origin.get("store", ".")
        if not store.is_dir():
            raise ValueError(
                f"report: the runs of this study lie in {os.path.normpath(store)}, which is not there; move it, too, or "
                "run the study again"
            )
        results = collect(study, read_study(study, store), origin.get("command", ""))
        return results | {"partitions": shown_splits(study, origin.get("partitions", {}))}
    if (path / "config.toml").exists():
        return _single(path)
    raise ValueError(f"report: {path} holds neither a study (study.toml) nor a run (config.toml)")


def _single(path: Path) -> dict[str, Any]:
    """A run as a study of one."""
    history = directory.history(path)
    if not history:
        raise ValueError(f"report: the run in {path} has no complete round")
    told = read_toml(path / "config.toml")
    config = _of_objects(told) if "note" in told else saved_config(path)
    config = config.changed(engine="auto")  # who ran the clients, a network perhaps, is no setting of a study
    task = {key: z for key, z in config.given.items() if key not in ("algorithm", "hyperparameters", "seed")}
    methods = {config.algorithm: dict(config.hyperparameters)}
    study = Study.read({key: z for key, z in task.items() if z is not None} | {"methods": methods, "seeds": [config.seed]})
    made = (directory.summary(path, len(history)) or {}).get("made_with", {})
    found = BranchResult(study.branches[0], outcomes=[Outcome(config.algorithm, config.seed, history, made_with=made)])
    results = collect(study, [found], told.get("note", shlex.join(["fedkeel", "run", str(path / "config.toml")])))
    shown = results["task"] | {"engine": told.get("engine", "auto")}
    if "note" in told:  # no name of data or model that are mere defaults
        shown = {key: z for key, z in told.items() if key not in ("note", "algorithm", "seed")}
    return results | {"task": shown}


def _of_objects(told: Mapping[str, Any]) -> RunConfig:
    """The settings of a run whose model and data have no names, such as a deployed one with data of its own."""
    method = dict(told["algorithm"])
    left_out = ("algorithm", *(["local_epochs"] if "local_steps" in told else []))  # of which it then is a mere default
    known = {key: z for key, z in told.items() if key in SETTINGS and key not in left_out and not isinstance(z, list)}
    clients = max(int(known.get("cohort", 1)), SETTINGS["clients"].default)  # how many there were is not told
    return RunConfig(algorithm=method.pop("name"), hyperparameters=method, clients=clients, **known)


def write_report(results: Mapping[str, Any], out: Path, formats: Sequence[str] = ()) -> Path:
    drawn, folder = figures(results), out / "report"
    guarded(folder, lambda: folder.mkdir(parents=True, exist_ok=True))
    for old in [path for path in folder.iterdir() if path.suffix[1:] in paper_figures.FORMATS]:  # of an earlier study
        guarded(old, partial(old.unlink, missing_ok=True))
    for name, figure in zip(file_names(drawn), drawn, strict=True):
        write_atomically(folder / f"{name}.svg", svg.draw(figure, alone=True).encode())
        for ending in formats:
            paper_figures.save(figure, folder / f"{name}.{ending}")
    write_atomically(folder / "table.csv", as_csv(results).encode())
    write_atomically(folder / "table.tex", as_latex(results).encode())
    write_atomically(out / "report.html", page(results, drawn).encode())
    return out / "report.html"


def file_names(drawn: Sequence[Figure]) -> list[str]:
    """A name for every figure. Names that differ only in signs that file names cannot have get numbers."""
    names: list[str] = []
    for figure in drawn:
        name = file_name(f"{figure.case}-{figure.name}" if figure.case else figure.name)
        again = sum(other == name or other.startswith(f"{name}~") for other in names)
        names.append(f"{name}~{again + 1}" if again else name)
    return names
