"""How the labels of a case are spread over its clients: which split is shown, and its counts, kept with the study."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedkeel.data.label_plot import label_counts
from fedkeel.files import write_atomically
from fedkeel.runs.config import SETTINGS, RunConfig, with_split_defaults
from fedkeel.study.results.collect import ORIGIN, read_origin
from fedkeel.study.running.data import StudyData
from fedkeel.study.study import Study

MOST = 200  # clients and classes in the plot of a split
NAMES = [
    name for name, about in SETTINGS.items() if about.metadata["group"] == "Data" and name not in ("data_dir", "augment")
]


class Split(NamedTuple):
    key: str  # the settings that it depends on
    of: str  # those that differ within the case, so that the split is one of several
    config: RunConfig


def split_of(study: Study, case: str) -> Split:
    """The split of a case's first line, on its first seed."""
    configs = []
    for branch in [branch for branch in study.branches if branch.case == case]:
        config = with_split_defaults(branch.config)
        configs.append(config.changed(split_seed=branch.seeds[0]) if study.resplit else config)
    values = {name: getattr(configs[0], name) for name in NAMES}
    several = [name for name in NAMES if any(getattr(config, name) != values[name] for config in configs)]
    several += ["split_seed"] * (study.resplit and "split_seed" not in several)
    return Split(json.dumps(values), ", ".join(f"{name} = {values[name]}" for name in several), configs[0])


def shown_splits(study: Study, counts: Mapping[str, Any]) -> dict[str, Any]:
    """What the report shows, by case. counts: samples of every class that a client has, by key of the split."""
    splits = {case: split_of(study, case) for case in study.cases}
    shown = {case: {"of": one.of, "counts": counts[one.key]} for case, one in splits.items() if one.key in counts}
    for case, one in shown.items():  # of a split by writers, say, the settings do not tell how many there are
        one["more"] = len(one["counts"]) == MOST != splits[case].config.clients
    return shown


def count_splits(study: Study, out: Path) -> dict[str, Any]:
    """The same, with the splits of this study counted and kept in its directory; nothing where data are absent."""
    origin = read_origin(out)
    data, known, counts = StudyData(), origin["partitions"], {}
    for split in [split_of(study, case) for case in study.cases]:
        if split.key in known:
            counts[split.key] = known[split.key]
        elif split.key not in counts:
            # The runs may be complete since long, or be made on other machines, so the data may not be here: no figure then.
            with contextlib.suppress(ValueError, OSError, ImportError):
                fed = data.of(split.config)
                if not fed.y.is_floating_point() and fed.y.dim() == 1 and fed.y.max() < MOST:
                    counts[split.key] = label_counts(fed, int(fed.y.max()) + 1)[:MOST].tolist()
    write_atomically(out / ORIGIN, json.dumps(origin | {"partitions": counts}).encode())
    return shown_splits(study, counts)
