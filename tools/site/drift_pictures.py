"""Draws docs/drift-paths.svg and docs/drift-steps.svg: what local steps do when clients differ.

    python tools/site/drift_pictures.py

Two clients fit a line with two weights. Their best weights differ, and so do the shapes of their losses.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import torch

import fedkeel as fk

matplotlib.use("svg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parents[2] / "docs"
matplotlib.rcParams["svg.hashsalt"] = "fedkeel"  # the same picture has the same bytes
# Samples of each client: its loss is the mean of (x w - y)^2 / 2.
X = (torch.tensor([[2.0, 0.0], [0.0, 0.6]]), torch.tensor([[0.6, 0.0], [0.0, 2.0]]))
BEST = (torch.tensor([2.0, 2.0]), torch.tensor([-1.0, -1.0]))


def federation() -> fk.Federation:
    return fk.Federation.from_arrays([(x, x @ best) for x, best in zip(X, BEST, strict=True)])


def minimiser() -> torch.Tensor:
    """The minimiser of the mean of both losses."""
    a = sum(x.T @ x for x in X)
    b = sum(x.T @ x @ best for x, best in zip(X, BEST, strict=True))
    return torch.linalg.solve(a, b)


def path(method: str, steps: int, rounds: int) -> torch.Tensor:
    """[rounds + 1, 2] the global model after every round."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, -2.5)
    points = [model.weight.detach().flatten().clone()]

    def keep(row: dict, state: fk.engine.callbacks.RoundState) -> None:
        points.append(next(state.model.parameters()).detach().flatten().clone())

    settings = {"rounds": rounds, "cohort": 2, "local_steps": steps, "batch_size": "all", "progress": False}
    loss = torch.nn.functional.mse_loss
    fk.train(
        model,
        federation(),
        fk.algorithm(method, lr=0.1),
        loss=lambda o, y: loss(o.flatten(), y) / 2,
        callbacks=[keep],
        **settings,
    )
    return torch.stack(points)


def paths() -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True, layout="constrained")
    for axis, method in zip(axes, ("fedavg", "scaffold"), strict=True):
        for steps, colour in ((1, "tab:green"), (5, "tab:orange"), (30, "tab:red")):
            points = path(method, steps, 150 // steps + 30)
            axis.plot(*points.T, "-o", ms=2.5, lw=1, color=colour, label=f"{steps} local steps")
        axis.plot(*minimiser(), "*", ms=16, color="black", label="best model for both")
        for number, best in enumerate(BEST):
            axis.plot(*best, "s", ms=7, color="tab:blue", label="best model of one client" if number else None)
        axis.set_title({"fedavg": "FedAvg", "scaffold": "SCAFFOLD"}[method])
        axis.set_xlabel("first weight")
    axes[0].set_ylabel("second weight")
    axes[1].legend(fontsize=8, loc="upper left")
    figure.savefig(DOCS / "drift-paths.svg", metadata={"Date": None})


def distances() -> None:
    figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
    counts = (1, 2, 5, 10, 20, 50)
    for method, colour in (("fedavg", "tab:orange"), ("fedprox", "tab:purple"), ("scaffold", "tab:blue")):
        far = [float((path(method, steps, 1000 // steps + 100)[-1] - minimiser()).norm()) for steps in counts]
        axis.plot(counts, far, "-o", ms=4, color=colour, label=fk.algorithm(method).name)
    axis.set(
        xscale="log", xlabel="local steps per round", ylabel="distance to the best model", xticks=counts, xticklabels=counts
    )
    axis.legend()
    figure.savefig(DOCS / "drift-steps.svg", metadata={"Date": None})


if __name__ == "__main__":
    paths()
    distances()
