"""The tiny problem that every peer and this library solve, with numpy alone, because peers' environments have nothing else.

A network 5-4-3 with tanh and cross-entropy, four clients of unequal size, given cohorts, and the mini-batches that
fedkeel draws. One file with all of this goes to the peers, so no peer has to reproduce fedkeel's random numbers.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

INPUTS, HIDDEN, CLASSES = 5, 4, 3
SHAPES = [(HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]
SIZES = (5, 8, 11, 4)  # with 2 epochs of batches of 4: 4, 4, 6 and 2 local steps, some batches of 1 or 3 samples
EPOCHS, BATCH, SEED, ROUNDS = 2, 4, 3, 5
EQUAL_STEPS = 4  # of all clients, in the problem for methods that need the same number
PARTIAL = [[0, 2], [1, 2], [0, 3], [2, 3], [0, 1]]
FULL = [[0, 1, 2, 3]] * ROUNDS
D = sum(int(np.prod(shape)) for shape in SHAPES)

Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """x0 [d], the clients' data, and for each (round, client) the sample numbers of its batches."""

    x0: np.ndarray
    data: list[Batch]
    numbers: dict[tuple[int, int], list[np.ndarray]]

    def batches(self, t: int, i: int) -> list[Batch]:
        """All local batches of client i in round t, in order."""
        x, y = self.data[i]
        return [(x[part], y[part]) for part in self.numbers[t, i]]

    def epochs(self, t: int, i: int) -> list[list[Batch]]:
        """The same, cut into epochs."""
        batches = self.batches(t, i)
        size = len(batches) // EPOCHS
        return [batches[e * size : (e + 1) * size] for e in range(EPOCHS)]

    def size(self, i: int) -> int:
        return len(self.data[i][1])

    def weights(self, ids: list[int], kind: str = "samples") -> np.ndarray:
        """Aggregation weights of a cohort."""
        sizes = np.array([self.size(i) if kind == "samples" else 1 for i in ids], dtype=float)
        return sizes / sizes.sum()

    def full_gradient(self, i: int, w: np.ndarray) -> np.ndarray:
        return gradient(w, self.data[i])


def make_data() -> tuple[np.ndarray, list[Batch]]:
    """Initial weights and data. Clients have different inputs and different labels."""
    rng = np.random.default_rng(7)
    data = []
    for size in SIZES:
        x = rng.normal(size=(size, INPUTS)) * rng.uniform(0.5, 1.5, size=INPUTS) + rng.normal(size=INPUTS)
        data.append((x, rng.choice(CLASSES, size=size, p=rng.dirichlet([0.5] * CLASSES))))
    return 0.5 * rng.normal(size=D), data


def save(problem: Problem, path: Path) -> None:
    arrays: dict[str, Any] = {"w0": problem.x0}
    for i, (x, y) in enumerate(problem.data):
        arrays |= {f"x{i}": x, f"y{i}": y}
    for (t, i), parts in problem.numbers.items():
        arrays |= {f"n_{t}_{i}_{k}": part for k, part in enumerate(parts)}
    np.savez(path, **arrays)


def load(path: Path) -> Problem:
    file = np.load(path)
    numbers: dict[tuple[int, int], list[np.ndarray]] = {}
    for name in sorted((n for n in file.files if n.startswith("n_")), key=lambda n: [int(z) for z in n[2:].split("_")]):
        t, i, _ = (int(z) for z in name[2:].split("_"))
        numbers.setdefault((t, i), []).append(file[name])
    return Problem(file["w0"], [(file[f"x{i}"], file[f"y{i}"]) for i in range(len(SIZES))], numbers)


def split(w: np.ndarray) -> list[np.ndarray]:
    """The flat weights [d] as tensors, in the order of the network's parameters."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(w, ends), SHAPES, strict=True)]


def flat(tensors: Any) -> np.ndarray:
    return np.concatenate([np.asarray(z, dtype=np.float64).reshape(-1) for z in tensors])


def gradient(w: np.ndarray, batch: Batch) -> np.ndarray:
    """Of the mean cross-entropy, by hand, [d]."""
    x, y = batch
    W1, b1, W2, b2 = split(w)
    z = np.tanh(x @ W1.T + b1)
    logits = z @ W2.T + b2
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = (p @ W2) * (1 - z**2)
    return flat([back.T @ x, back.sum(0), p.T @ z, p.sum(0)])


def sgd(w: np.ndarray, batches: list[Batch], lr: float) -> np.ndarray:
    """Plain local SGD, for peers that only aggregate and for formulas by hand."""
    for batch in batches:
        w = w - lr * gradient(w, batch)
    return w


Case = Callable[[Problem], "list[np.ndarray]"]  # the global weights after each round


def serve(cases: dict[str, Case]) -> None:
    """The main program of a peer's script: runs each case in the directory of the problems and leaves its weights there.

    A case that fails leaves its error, so that the others still count. Names that start with "equal" get the problem in
    which all clients take the same number of steps.
    """
    home, peer = Path(sys.argv[1]), sys.argv[2]
    out: dict[str, Any] = {}
    for name, case in cases.items():
        try:
            out[name] = np.stack(case(load(home / ("equal.npz" if name.startswith("equal") else "epochs.npz"))))
        except Exception as error:
            traceback.print_exc()
            out["error " + name] = np.array(f"{type(error).__name__}: {error}")
    np.savez(home / f"{peer}.npz", **out)
