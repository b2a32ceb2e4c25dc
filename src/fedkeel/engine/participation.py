"""Who takes part in a round: which clients are available, and which of them the server selects.

Every kind is a pure function of the seed and the round. So all engines have the same cohorts, and so has a resumed run.
A kind says who is there (`present`). The server then takes as many of them as `cohort` says, or all if there are fewer. If
nobody is there, the round changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import MISSING, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedkeel.core import spelling
from fedkeel.core.hyperparameters import hp

if TYPE_CHECKING:  # so that settings are known without numpy, for `fedkeel --help`
    import numpy as np

    from fedkeel.data.federation import Federation


@dataclass(frozen=True)
class Moment:
    """When the server looks who is there."""

    t: int  # the round
    seed: int
    N: int  # clients
    time: float  # virtual seconds if the run has a clock, otherwise t
    fed: Federation
    kept: dict[str, Any]  # what a kind keeps from round to round, to be faster; the same for all moments of a run


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Base of all kinds."""

    needs_labels: ClassVar[bool] = False
    limited: ClassVar[bool] = True  # does the server take at most a cohort of those who are there?

    def present(self, moment: Moment) -> np.ndarray | None:
        """Who is there, [N] of True and False. None: everybody."""
        return None

    def fewest(self, N: int, S: int) -> int:
        """The size of the smallest round that can happen. S: the cohort."""
        return S

    def choose(self, rng: np.random.Generator, among: np.ndarray, n: int, sizes: np.ndarray) -> np.ndarray:
        """n of the clients `among`, without replacement. sizes: the numbers of samples of all clients."""
        chosen: np.ndarray = among[rng.choice(len(among), size=n, replace=False, shuffle=False)]
        return chosen

    def probabilities(self, S: int, sizes: np.ndarray) -> np.ndarray | None:
        """The probability of every client to take part, [N], if means are to be corrected by it."""
        return None

    def identity(self, kept: dict[str, Any]) -> str:
        """What a run that resumes must have, too. kept: as in Moment."""
        return spelling.spell(KINDS, self)


@dataclass(frozen=True, kw_only=True)
class Uniform(Participation):
    """Everybody is there. All cohorts have the same probability."""


@dataclass(frozen=True, kw_only=True)
class Bernoulli(Participation):
    """Every client takes part with probability p, independently of the others. `cohort` does not limit the round."""

    limited = False
    p: float | None = hp(None, "probability of a client; by default cohort / clients", above=0, most=1)

    def present(self, moment: Moment) -> np.ndarray:
        assert self.p is not None  # `Schedule` fills it in
        return _uniforms(moment) < self.p

    def fewest(self, N: int, S: int) -> int:
        return N if self.p == 1 else 0


@dataclass(frozen=True, kw_only=True)
class Weighted(Participation):
    """A client's probability to take part is proportional to its number of samples (at most 1).

    The cohort has a fixed size. Systematic sampling in a random order has exactly these probabilities.
    """

    correct: bool = hp(False, "divide every weight by the client's probability, so that means are unbiased")

    def choose(self, rng: np.random.Generator, among: np.ndarray, n: int, sizes: np.ndarray) -> np.ndarray:
        import numpy as np

        share = proportional(sizes[among], n)
        sure = share >= 1
        order = rng.permutation(np.flatnonzero(~sure))
        ends = np.cumsum(share[order])
        left = n - int(sure.sum())
        # Points at distance 1: an interval shorter than 1 contains at most one of them.
        points = (rng.random() + np.arange(left)) * (ends[-1] / left if left else 1.0)
        chosen: np.ndarray = among[
            np.concatenate([np.flatnonzero(sure), order[np.searchsorted(ends, points, side="right")]])
        ]
        return chosen

    def probabilities(self, S: int, sizes: np.ndarray) -> np.ndarray | None:
        return proportional(sizes, S) if self.correct else None


@dataclass(frozen=True, kw_only=True)
class Cyclic(Participation):
    """Groups of clients take turns: client i is there in the rounds t with t = i modulo `groups`."""

    groups: int = hp(MISSING, "number of groups", least=1)

    def present(self, moment: Moment) -> np.ndarray:
        import numpy as np

        turn: np.ndarray = np.arange(moment.N) % self.groups == moment.t % self.groups
        return turn

    def fewest(self, N: int, S: int) -> int:
        return min(S, N // self.groups)


@dataclass(frozen=True, kw_only=True)
class Markov(Participation):
    """Every client comes and goes by itself, and stays for some rounds. In the long run a share on / (on + off) is there."""

    on: float = hp(MISSING, "probability that an absent client is there in the next round", above=0, most=1)
    off: float = hp(MISSING, "probability that a present client is gone in the next round", least=0, most=1)

    def present(self, moment: Moment) -> np.ndarray:
        import numpy as np

        # The chain goes on from its last state. If an earlier state is needed, it begins again.
        t: int = -1
        state: np.ndarray = np.zeros(moment.N, bool)
        t, state = moment.kept.get("markov", (t, state))
        if t > moment.t:
            t = -1
        while t < moment.t:
            t += 1
            there = np.where(state, 1 - self.off, self.on) if t else self.on / (self.on + self.off)
            state = _uniforms(replace(moment, t=t)) < there
        moment.kept["markov"] = t, state
        return state

    def fewest(self, N: int, S: int) -> int:
        return S if self.off == 0 else 0


@dataclass(frozen=True, kw_only=True)
class ByLabel(Participation):
    """Clients with labels of high number are there more often.

    A sample of the first class has the probability `least`, one of the last class `most`, and classes between them lie on a
    line. A client is there with the mean probability of its samples, drawn anew in every round.
    """

    needs_labels = True
    least: float = hp(0.1, "probability of a client that has only the first class", above=0, most=1)
    most: float = hp(0.9, "probability of a client that has only the last class", above=0, most=1)

    def present(self, moment: Moment) -> np.ndarray:
        if "by_label" not in moment.kept:
            moment.kept["by_label"] = self.probability(moment.fed)
        there: np.ndarray = _uniforms(moment) < moment.kept["by_label"]
        return there

    def probability(self, fed: Federation) -> np.ndarray:
        """The probability of every client to be there, [N]."""
        import numpy as np

        if fed.y.is_floating_point() or fed.y.dim() != 1:
            raise ValueError("participation: 'by_label' is not allowed here; it needs one class number per sample")
        classes = fed.classes or int(fed.y.max()) + 1
        counts = fed.label_counts(classes)
        of_class = np.linspace(self.least, self.most, classes)
        mean: np.ndarray = counts @ of_class / fed.sizes
        return mean

    def fewest(self, N: int, S: int) -> int:
        return S if self.least == self.most == 1 else 0


@dataclass(frozen=True, kw_only=True)
class Trace(Participation):
    """Who is there is written in a file: CSV with the columns client, from and to, or FedScale's pickled dictionary.

    A line says that a client is there from `from` on and until before `to`. Both are rounds, or seconds if the run has a
    clock. After the last `to` of the file it begins again at 0.
    """

    file: str = hp(MISSING, "the CSV file, or a trace of FedScale")

    def lines(self, kept: dict[str, Any]) -> np.ndarray:
        """[L, 3] client, from and to."""
        if "trace" not in kept:
            from fedkeel.engine.trace_file import read_trace

            kept["trace"] = read_trace(self.file)
        lines: np.ndarray = kept["trace"]
        return lines

    def present(self, moment: Moment) -> np.ndarray:
        import numpy as np

        clients, start, stop = self.lines(moment.kept).T
        if int(clients.max()) >= moment.N:
            raise ValueError(
                f"participation: {self.file} has client {int(clients.max())}; clients are numbered from 0 to {moment.N - 1}"
            )
        time = moment.time % stop.max()
        there = np.zeros(moment.N, bool)
        there[clients[(start <= time) & (time < stop)].astype(int)] = True
        return there

    def next_arrival(self, time: float, kept: dict[str, Any]) -> float:
        """The first moment from `time` on at which somebody is there."""
        _, start, stop = self.lines(kept).T
        past, now = divmod(time, stop.max())
        if ((start <= now) & (now < stop)).any():
            return time
        later = start[start > now]
        return float(past * stop.max() + later.min() if len(later) else (past + 1) * stop.max() + start.min())

    def fewest(self, N: int, S: int) -> int:
        return 0

    def identity(self, kept: dict[str, Any]) -> str:
        digest = hashlib.blake2b(self.lines(kept).tobytes(), digest_size=8).hexdigest()
        return f"trace with the content {digest}"  # the file may have moved


KINDS: dict[str, type[Participation]] = {
    "uniform": Uniform,
    "bernoulli": Bernoulli,
    "weighted": Weighted,
    "cyclic": Cyclic,
    "markov": Markov,
    "by_label": ByLabel,
    "trace": Trace,
}


def participation(name: str, **options: Any) -> Participation:
    """Who takes part in a round: uniform, bernoulli, weighted, cyclic, markov, by_label or trace; see docs/participation.md.

    >>> participation("markov", on=0.2, off=0.1)
    """
    made: Participation = spelling.build("participation", KINDS, name, **options)
    if isinstance(made, Trace):
        from fedkeel.engine.trace_file import read_trace

        read_trace(made.file)  # an unreadable file is an error now
    return made


def as_text(value: object) -> str:
    """The value of the setting: what `participation` made, or its text -> its text."""
    if not isinstance(value, str | Participation):
        raise ValueError(
            f"participation = {value!r} is not allowed; it must be a text such as 'markov:on=0.2,off=0.1', "
            "or what fedkeel.participation(...) returns"
        )
    return spelling.spell(KINDS, value if isinstance(value, Participation) else spelling.read("participation", KINDS, value))


def from_text(text: str | None) -> Participation:
    """The kind that a text spells; uniform for None."""
    kind: Participation = spelling.read("participation", KINDS, text or "uniform")
    return kind


class Schedule:
    """The cohorts of a run."""

    def __init__(self, kind: Participation, seed: int, S: int, fed: Federation, lists: Sequence[Any] | None = None) -> None:
        """S: the cohort, a count.  lists: the clients of every round, or their number, if the user gave them."""
        N = len(fed)
        if isinstance(kind, Bernoulli) and kind.p is None:
            kind = Bernoulli(p=S / N)
        self.kind, self.seed, self.N, self.S, self.fed, self.lists = kind, seed, N, S, fed, lists
        self.kept: dict[str, Any] = {}
        self.probabilities = kind.probabilities(S, fed.sizes)
        kind.present(self._moment(0, None))  # raises if labels or file do not fit this federation
        self.identity = None if isinstance(kind, Uniform) else kind.identity(self.kept)

    def participants(self, t: int, time: float | None = None) -> list[int]:
        """The clients of round t, in increasing order. time: virtual seconds, if the run has a clock."""
        if self.lists is not None:
            now = self.lists[t]
            if isinstance(now, Sequence):
                return sorted(int(i) for i in now)
            return self.draw(t, now if isinstance(now, int) else max(1, round(now * self.N)), time)
        return self.draw(t, self.S, time)

    def draw(self, t: int, n: int, time: float | None = None, busy: Collection[int] = (), turn: int = 0) -> list[int]:
        """Up to n clients that are there in round t and not busy, in increasing order.

        turn: counts the draws of one round, so that each has random numbers of its own.
        """
        import numpy as np

        from fedkeel.engine import seeding

        there = self.kind.present(self._moment(t, time))
        if not self.kind.limited:
            assert there is not None
            return [int(i) for i in np.flatnonzero(there)]
        among = np.arange(self.N) if there is None else np.flatnonzero(there)
        if busy:
            among = among[~np.isin(among, list(busy))]
        if n >= len(among):
            return [int(i) for i in among]
        rng = seeding.generator(self.seed, seeding.SAMPLING, t, turn)
        return sorted(self.kind.choose(rng, among, n, self.fed.sizes).tolist())

    def somebody_from(self, time: float) -> float:
        """The first moment from `time` on at which somebody is there, if a trace says so. Other kinds: `time`."""
        return self.kind.next_arrival(time, self.kept) if isinstance(self.kind, Trace) else time

    def _moment(self, t: int, time: float | None) -> Moment:
        return Moment(t, self.seed, self.N, float(t) if time is None else time, self.fed, self.kept)


def proportional(sizes: np.ndarray, n: int) -> np.ndarray:
    """Probabilities proportional to sizes, at most 1 each, that add up to n. If n is too large: 1 for all."""
    import numpy as np

    if n >= len(sizes):
        return np.ones(len(sizes))
    share: np.ndarray = n * sizes / sizes.sum()
    while (share > 1).any():
        sure = share >= 1
        rest = sizes * ~sure
        share = np.where(sure, 1.0, (n - sure.sum()) * rest / rest.sum())
    return share


def _uniforms(moment: Moment) -> np.ndarray:
    """A random number from 0 to 1 for every client."""
    from fedkeel.engine import seeding

    return seeding.generator(moment.seed, seeding.PRESENCE, moment.t).random(moment.N)
