"""Regression with a metric of your own, metrics of torchmetrics, and a stop when the validation loss no longer falls."""

import torch
from torch import nn
from torch.nn import functional
from torchmetrics import MeanAbsoluteError

import fedkeel as fk

torch.manual_seed(0)
weights = torch.tensor([1.0, -2.0, 0.5])
clients = []
for client in range(10):  # the clients' inputs have different means
    x = torch.randn(60, 3) + 0.2 * client
    clients.append((x, x @ weights[:, None] + 0.1 * torch.randn(60, 1)))
x = torch.randn(200, 3) + 1
fed = fk.Federation.from_arrays(clients, test=(x, x @ weights[:, None]))


def within_a_tenth(model: nn.Module, fed: fk.Federation) -> dict[str, float]:
    assert fed.test is not None
    inputs, targets = fed.test
    return {"within_a_tenth": float(((model(inputs) - targets).abs() < 0.1).float().mean())}


run = fk.train(
    nn.Linear(3, 1),
    fed,
    fk.algorithm("scaffold", lr=0.02),
    rounds=200,
    cohort=5,
    loss=functional.mse_loss,
    metrics=[MeanAbsoluteError(), within_a_tenth],
    validation=0.2,
    callbacks=[fk.EarlyStopping("val_loss", patience=10)],
    progress=False,
)
print(run)
print(run.frame[["val_loss", "test_mean_absolute_error", "within_a_tenth"]].tail(3))
assert len(run.history) < 200
assert run.history[-1]["val_loss"] < 0.1
