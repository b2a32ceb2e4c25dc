"""`fedkeel report`: the page of a study or of a single run, and its figures and tables as files of their own."""

from __future__ import annotations

import json
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

CHOICE = "choice.json"  # the answer of `fedkeel choose`


def report(path: str | Path, formats: Sequence[str] = ()) -> Path:
    """Writes report.html to the directory of a study or run, and files to its folder `report`. Returns the page's path.

    If the study is not complete, the page shows what there is.  formats: also draw the figures with matplotlib, for papers:
    any of pdf, pgf, svg, png. With svg, the files that look like the page are replaced.
    """
    path = Path(path)
    paper_figures.check_formats(formats)
    return write_report(results_of(path), path, formats)


def results_of(path: Path) -> dict[str, Any]:
    """The results of the study or run in a directory, complete or not."""
    if (path / "study.toml").exists():
        study = Study.read(read_settings(path / "study.toml"))
        lost = f"not kept ({ORIGIN} is missing); to run it again: fedkeel compare {path / 'study.toml'}"
        origin: dict[str, Any] = read_origin(path) or {"command": lost}
        store = path / origin.get("store", ".")
        if not store.is_dir():
            raise ValueError(
                f"report: the runs of this study lie in {os.path.normpath(store)}, which does not exist; "
                "move it here, too, or run the study again"
            )
        results = collect(study, read_study(study, store), origin.get("command", ""))
        if (path / CHOICE).exists():
            choice = json.loads((path / CHOICE).read_text())
            results |= {"choice": choice, "tuning": choice.get("tuning", results["tuning"])}
        return results | {"partitions": shown_splits(study, origin.get("partitions", {}))}
    if (path / "config.toml").exists():
        return _single(path)
    raise ValueError(f"report: {path} holds neither a study (study.toml) nor a run (config.toml)")


def _single(path: Path) -> dict[str, Any]:
    """The results of one run, as a study of this run alone."""
    history = directory.history(path)
    if not history:
        raise ValueError(f"report: the run in {path} has no complete round")
    saved = read_toml(path / "config.toml")
    config = _of_objects(saved) if "note" in saved else saved_config(path)
    config = config.changed(engine="auto")  # The run may have another engine, such as a network, which studies do not have.
    task = {key: z for key, z in config.given.items() if key not in ("algorithm", "hyperparameters", "seed")}
    methods = {config.algorithm: dict(config.hyperparameters)}
    study = Study.read({key: z for key, z in task.items() if z is not None} | {"methods": methods, "seeds": [config.seed]})
    made = (directory.summary(path, len(history)) or {}).get("made_with", {})
    found = BranchResult(study.branches[0], outcomes=[Outcome(config.algorithm, config.seed, history, made_with=made)])
    results = collect(study, [found], saved.get("note", shlex.join(["fedkeel", "run", str(path / "config.toml")])))
    shown = results["task"] | {"engine": saved.get("engine", "auto")}
    if "note" in saved:  # Data and model have no names. Those of the config are only defaults.
        shown = {key: z for key, z in saved.items() if key not in ("note", "algorithm", "seed")}
    return results | {"task": shown}


def _of_objects(saved: Mapping[str, Any]) -> RunConfig:
    """The settings of a run whose model and data have no names, such as that of a deployment."""
    method = dict(saved["algorithm"])
    left_out = ("algorithm", *(["local_epochs"] if "local_steps" in saved else []))  # then local_epochs is only a default
    known = {key: z for key, z in saved.items() if key in SETTINGS and key not in left_out and not isinstance(z, list)}
    default: Any = SETTINGS["clients"].default
    clients = max(int(known.get("cohort", 1)), default)  # The file does not say how many there were.
    return RunConfig(algorithm=method.pop("name"), hyperparameters=method, clients=clients, **known)


def write_report(results: Mapping[str, Any], out: Path, formats: Sequence[str] = ()) -> Path:
    drawn, folder = figures(results), out / "report"
    guarded(folder, lambda: folder.mkdir(parents=True, exist_ok=True))
    for old in [path for path in folder.iterdir() if path.suffix[1:] in paper_figures.FORMATS]:  # from an earlier report
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
    """A name for the file of every figure. If two names become the same as file names, the second gets a number."""
    names: list[str] = []
    for figure in drawn:
        name = file_name(f"{figure.case}-{figure.name}" if figure.case else figure.name)
        again = sum(other == name or other.startswith(f"{name}~") for other in names)
        names.append(f"{name}~{again + 1}" if again else name)
    return names
