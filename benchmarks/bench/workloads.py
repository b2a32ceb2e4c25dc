"""The workloads of all contestants: sizes, model and data. Needs numpy only, because every peer's Python imports it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv-peers" / "bench"  # data and logs; git ignores it
LR = 0.01


@dataclass(frozen=True)
class Workload:
    """FedAvg with plain SGD: `cohort` of `clients` do `steps` local steps on batches of `batch`, and are averaged."""

    title: str
    model: str  # a name of fedkeel.models, which all contestants with torch train; "": a dense network with `widths`
    shape: tuple[int, ...]  # of a sample
    classes: int
    clients: int
    samples: int  # of a client
    cohort: int
    steps: int
    batch: int
    rounds: int  # of a pass
    widths: tuple[int, ...] = ()  # of a dense network, for contestants that build it themselves
    vocabulary: int | None = None
    data: str = ""  # "digits", "texts" of unlike length, or random numbers

    @property
    def sizes(self) -> str:
        return f"{self.clients:,} clients x {self.samples}, {self.cohort} per round, K = {self.steps}, batch {self.batch}"

    def module(self) -> Any:
        import torch
        from torch import nn

        from fedkeel.models import make_model

        torch.manual_seed(0)
        if self.model:
            return make_model(self.model, self.shape, self.classes, self.vocabulary)
        pairs = zip(self.widths, self.widths[1:], strict=False)
        layers = [z for a, b in pairs for z in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    def make_data(self) -> tuple[np.ndarray, np.ndarray]:
        """x [clients * samples, ...] and y [clients * samples]; client i has the i-th `samples` rows."""
        rng, n = np.random.default_rng(0), self.clients * self.samples
        if self.data == "digits":
            from sklearn.datasets import load_digits

            x, y = load_digits(return_X_y=True)
            chosen = rng.integers(0, len(y), n)
            return (x[chosen] / 16).astype(np.float32), y[chosen].astype(np.int64)
        if self.data == "texts":  # as many words as those of SST-2: 10 on average, 35 in the longest of 32
            lengths = rng.lognormal(2.02, 0.75, (n, 1)).clip(1, self.shape[0])
            x = rng.integers(1, self.vocabulary, (n, *self.shape)) * (np.arange(self.shape[0]) < lengths)
        elif self.vocabulary:
            x = rng.integers(0, self.vocabulary, (n, *self.shape))
        else:
            x = rng.standard_normal((n, *self.shape), dtype=np.float32)
        return x, rng.integers(0, self.classes, n)


WORKLOADS = {
    "a": Workload("MLP 784-200-200-10", "mlp2", (784,), 10, 100, 600, 10, 10, 32, rounds=30, widths=(784, 200, 200, 10)),
    "b": Workload("digits, 64-32-10", "", (64,), 10, 1000, 20, 10, 10, 10, rounds=40, widths=(64, 32, 10), data="digits"),
    "c": Workload("CNN of 3 convolutions, 28 x 28", "cnn3", (1, 28, 28), 10, 100, 200, 10, 3, 32, rounds=2),
    "d": Workload("LeNet-5, 32 x 32", "lenet5", (3, 32, 32), 10, 100, 320, 10, 5, 32, rounds=4),
    "e": Workload("ResNet-18-GN, 32 x 32", "resnet18-gn", (3, 32, 32), 10, 4, 100, 4, 2, 50, rounds=1),
    "f": Workload("LSTM of 2 x 256, 80 characters", "char-lstm", (80,), 80, 100, 100, 4, 5, 10, rounds=3, vocabulary=80),
    "j": Workload("MLP of 10 million parameters", "", (784,), 10, 20, 64, 4, 3, 32, rounds=2, widths=(784, 2800, 2700, 10)),
    "k": Workload(
        "LSTM on texts as long as SST-2's", "lstm", (55,), 2, 100, 160, 10, 5, 32, rounds=3, vocabulary=2000, data="texts"
    ),
}


def prepare(name: str) -> None:
    """Writes the arrays of a workload, once."""
    place = CACHE / name
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "y.npy").exists():
        x, y = WORKLOADS[name].make_data()
        np.save(place / "x.npy", x)
        np.save(place / "y.npy", y)


def arrays(name: str) -> tuple[np.ndarray, np.ndarray]:
    return np.load(CACHE / name / "x.npy"), np.load(CACHE / name / "y.npy")
