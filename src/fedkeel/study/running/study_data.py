"""The data of the runs of a study: each federation is loaded once, and new runs have the data that complete runs had."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import fedkeel.runs.from_config as from_config
from fedkeel.engine.state import directory
from fedkeel.runs.config import OWN_DATA, SETTINGS, RunConfig
from fedkeel.study.python_objects import NAMES_ONLY, PythonObjects

if TYPE_CHECKING:
    from fedkeel.data.federation import Dataset, Federation
    from fedkeel.study.running.plan import StudyRun

Key = tuple[str, ...]  # settings that decide which data and model a run has


class StudyData:
    """The federations that runs need. Only the last few stay in memory."""

    KEEP = 3

    def __init__(self, objects: PythonObjects = NAMES_ONLY) -> None:
        self.objects = objects
        self.loaded: dict[Key, Federation] = {}
        self.without_test: dict[Key, Federation] = {}  # the same for trials: no decision can depend on test samples
        self.fingerprints: dict[Key, str] = {}  # of what was loaded
        self.complete: dict[Key, tuple[str, str]] = {}  # name and data fingerprint of a complete run with this key
        self.load_errors: dict[Key, Exception] = {}  # why data could not be loaded: a second try would take as long to fail

    @staticmethod
    def key(config: RunConfig) -> Key:
        """Two runs with the same key have the same data and model."""
        names = [name for name, about in SETTINGS.items() if about.metadata["group"] == "Data"]
        return tuple(repr(getattr(config, name, None)) for name in (*names, "model"))

    def of(self, config: RunConfig) -> Federation:
        key = self.key(config)
        if key not in self.loaded:
            while len(self.loaded) >= self.KEEP:
                oldest = next(iter(self.loaded))
                del self.loaded[oldest]
                self.without_test.pop(oldest, None)
            self.loaded[key] = self.objects.fed or from_config.federation(config, self.load(config))
        return self.loaded[key]

    def of_run(self, run: StudyRun) -> Federation:
        """The data of a run. Raises ValueError if they differ from those of complete runs."""
        key, fed = self.key(run.config), self.of(run.config)
        if not run.has_test:
            if key not in self.without_test:
                self.without_test[key] = dataclasses.replace(fed, test=None)
            return self.without_test[key]
        if fed.test is None and self.objects == NAMES_ONLY:
            raise ValueError(f"data: {run.config.data} has no test samples, so methods cannot be compared by their accuracy")
        self._check_same(key, run.config)
        return fed

    def load(self, config: RunConfig) -> Dataset | Federation:
        """The data set of a run, before it is split."""
        source = tuple(str(getattr(config, name)) for name in ("data", "data_dir", "augment", *OWN_DATA))
        if source in self.load_errors:
            raise self.load_errors[source]
        try:
            return from_config.load_data(config)
        except Exception as error:
            self.load_errors[source] = error
            raise

    def note_complete(self, run: StudyRun) -> None:
        """Remembers which data a complete run had."""
        if not run.has_test:
            return
        fingerprint = (directory.summary(run.out, run.config.rounds) or {}).get("data")
        if fingerprint:
            self.complete[self.key(run.config)] = run.name, fingerprint

    def _check_same(self, key: Key, config: RunConfig) -> None:
        """New runs must have the data that complete runs had. A part of a data set has the same name as the whole set."""
        if key not in self.complete:
            return
        if key not in self.fingerprints:
            self.fingerprints[key] = self.loaded[key].fingerprint()
        name, fingerprint = self.complete[key]
        if self.fingerprints[key] != fingerprint and not self.loaded[key].had_fingerprint(fingerprint):
            raise ValueError(
                f"data: {config.data} differs from what the complete run {name} was trained on (is it a part of the set, or "
                "another copy?); choose another --out, or --fresh to replace all runs"
            )
