"""The data of a study: loaded once for all runs on the same data, and checked against the runs that are complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedkeel.engine.state import directory
from fedkeel.runs import from_config
from fedkeel.runs.config import SETTINGS, RunConfig
from fedkeel.study.running.plan import StudyRun

if TYPE_CHECKING:
    from fedkeel.data.federation import Dataset, Federation

Key = tuple[str, ...]


class StudyData:
    """The federations that runs need. Only the last few stay in memory."""

    KEEP = 3

    def __init__(self) -> None:
        self.loaded: dict[Key, Federation] = {}
        self.fingerprints: dict[Key, str] = {}  # of what was loaded
        self.complete: dict[Key, tuple[str, str]] = {}  # name and data fingerprint of a complete run with this key
        self.absent: dict[Key, Exception] = {}  # why data could not be loaded: a second try would take as long to fail

    @staticmethod
    def key(config: RunConfig) -> Key:
        """Two runs with the same key have the same data and model."""
        names = [name for name, about in SETTINGS.items() if about.metadata["group"] == "Data"]
        return tuple(repr(getattr(config, name, None)) for name in (*names, "model"))

    def of(self, config: RunConfig) -> Federation:
        key = self.key(config)
        if key not in self.loaded:
            while len(self.loaded) >= self.KEEP:
                del self.loaded[next(iter(self.loaded))]
            fed = from_config.federation(config, self.load(config))
            if fed.test is None:
                raise ValueError(f"data: {config.data} has no test samples, so methods cannot be compared by their accuracy")
            self.loaded[key] = fed
        self._check_same(key, config)
        return self.loaded[key]

    def load(self, config: RunConfig) -> Dataset:
        """The data set of a run, before it is split."""
        from fedkeel.data.load import load

        source = (config.data, str(config.data_dir), str(config.augment))
        if source in self.absent:
            raise self.absent[source]
        try:
            return load(config.data, config.data_dir, config.augment)
        except Exception as error:
            self.absent[source] = error
            raise

    def note_complete(self, run: StudyRun) -> None:
        """Remembers which data a complete run had."""
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
        if self.fingerprints[key] != fingerprint:
            raise ValueError(
                f"data: {config.data} differs from what the complete run {name} was trained on (is it a part of the set, or "
                "another copy?); choose another --out, or --fresh to replace all runs"
            )
