"""Who came in which round: how often each client came, and how old the records of the clients are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


class Attendance:
    """Counts who came."""

    def __init__(self, N: int) -> None:
        self.last = np.full(N, -1)  # [N] the last round of every client; -1: it never came
        self.rounds = np.zeros(N, dtype=np.int64)  # [N] in how many rounds it came

    def add(self, t: int, ids: Sequence[int]) -> dict[str, Any]:
        """Clients whose uploads were used in round t -> columns of the history.

        coverage: the share of all clients that have come so far.  record_age: rounds since a client that has come was there
        last, the mean over these clients.  oldest_record: the largest such number.
        """
        self.last[list(ids)] = t
        self.rounds[list(ids)] += 1
        ages = t - self.last[self.rounds > 0]
        mean, oldest = (float(ages.mean()), int(ages.max())) if len(ages) else (0.0, 0)
        came: list[int] = list(ids)
        return {"came": came, "coverage": len(ages) / len(self.last), "record_age": mean, "oldest_record": oldest}

    def replay(self, history: Sequence[dict[str, Any]]) -> None:
        """Counts the rounds of a run that resumes."""
        for row in history:
            self.add(row["round"], row["came"])

    def frame(self, rounds: int) -> pd.DataFrame:
        """One line per client: in how many rounds it came, their share, its last round and the age of its record.

        rounds: how many the run has had.
        """
        import pandas as pd

        came = self.rounds > 0
        columns = {"rounds": self.rounds, "share": self.rounds / max(rounds, 1)}
        last, age = (pd.array(z, dtype="Int64") for z in (self.last, rounds - 1 - self.last))
        last[~came] = age[~came] = pd.NA
        return pd.DataFrame({"client": np.arange(len(self.last)), **columns, "last": last, "age": age})
