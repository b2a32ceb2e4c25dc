"""Train a LightningModule over clients, without changing it."""

import lightning
import torch
from torch import nn
from torch.nn import functional

import fedkeel as fk


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        x, y = batch
        loss = functional.cross_entropy(self(x), y, label_smoothing=0.1)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


fed = fk.load("digits").split("dirichlet_per_class", clients=20, concentration=0.3)
model, step = fk.from_lightning(Digits())
run = fk.train(model, fed, fk.algorithm("fedavg", lr=0.5), rounds=15, cohort=10, step=step, validation=0.1, progress=False)
print(run)
assert run.history[-1]["val_accuracy"] > 0.5
