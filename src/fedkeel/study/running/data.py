"""The data of a study: loaded once for all runs of a task, and the same that its complete runs had."""

from __future__ import annotations

from typing import Any

from fedkeel.engine.state import directory
from fedkeel.runs import from_config
from fedkeel.runs.config import SETTINGS, RunConfig
from fedkeel.study.running.plan import Job

Key = tuple[str, ...]


class Data:
    """The data of the last few tasks."""

    KEEP = 3

    def __init__(self) -> None:
        self.loaded: dict[Key, Any] = {}
        self.prints: dict[Key, str] = {}  # fingerprints of what was loaded
        self.before: dict[Key, tuple[str, str]] = {}  # a complete run of the task, and the fingerprint of its data
        self.absent: dict[Key, Exception] = {}  # why data could not be had: to ask the hub again would take as long

    @staticmethod
    def key(config: RunConfig) -> Key:
        """Two runs with the same key have the same data and model."""
        names = [name for name, about in SETTINGS.items() if about.metadata["group"] == "Data"]
        return tuple(repr(getattr(config, name, None)) for name in (*names, "model"))

    def of(self, config: RunConfig) -> Any:
        key = self.key(config)
        if key not in self.loaded:
            while len(self.loaded) >= self.KEEP:
                del self.loaded[next(iter(self.loaded))]
            fed = from_config.federation(config, self.load(config))
            if fed.test is None:
                raise ValueError(f"data: {config.data} has no test samples, so methods cannot be compared by their accuracy")
            self.loaded[key] = fed
        self._check(key, config)
        return self.loaded[key]

    def load(self, config: RunConfig) -> Any:
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

    def had(self, job: Job) -> None:
        """Notes which data a complete run had."""
        found = (directory.summary(job.out, job.config.rounds) or {}).get("data")
        if found:
            self.before[self.key(job.config)] = job.name, found

    def _check(self, key: Key, config: RunConfig) -> None:
        """Are they what a complete run had, with which others will be compared? A part of a set goes by the same name."""
        if key not in self.before:
            return
        if key not in self.prints:
            self.prints[key] = self.loaded[key].fingerprint()
        name, print_then = self.before[key]
        if self.prints[key] != print_then:
            raise ValueError(
                f"data: {config.data} is not here what it was for {name}, which is complete (a part of the set, or another "
                "copy?); choose another --out, or --fresh to replace all runs"
            )
