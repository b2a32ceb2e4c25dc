"""Your own tensors: one pair (x, y) per client."""

import torch

import fedkeel as fk

generator = torch.Generator().manual_seed(0)
weights = torch.randn(20, generator=generator)


def client(shift: float, n: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of one client. Clients differ in where their samples lie."""
    x = torch.randn(n, 20, generator=generator) + shift
    return x, (x @ weights > 0).long()


fed = fk.Federation.from_arrays([client(shift) for shift in torch.linspace(-1, 1, 12).tolist()], test=client(0.0, 1000))
print(fed)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
run = fk.train(model, fed, "scaffold", rounds=20, cohort=4, progress=False)
print(f"accuracy {run.history[-1]['test_accuracy']:.3f}")
