"""Hugging Face data sets, one per client, read batch by batch. `collate` makes a pair (x, y) of a list of samples."""

import datasets
import torch
from sklearn.datasets import load_digits

import fedkeel as fk

bunch = load_digits()
whole = datasets.Dataset.from_dict({"pixels": (bunch.data / 16).tolist(), "label": bunch.target.tolist()})
parts = whole.train_test_split(test_size=0.2, seed=0)
clients = [parts["train"].shard(10, i) for i in range(10)]


def collate(samples: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([z["pixels"] for z in samples]), torch.tensor([z["label"] for z in samples])


fed = fk.Federation.from_datasets(clients, test=parts["test"], collate=collate)
run = fk.train(fk.model("mlp", fed, classes=10), fed, "fedavg", rounds=10, cohort=5, progress=False)
print(f"accuracy {run.history[-1]['test_accuracy']:.3f}")

# The same as streams: samples are read in their order, and nothing is kept in memory.
streams = [shard.to_iterable_dataset() for shard in clients]
fed = fk.Federation.from_datasets(streams, test=parts["test"], collate=collate, sizes=[len(shard) for shard in clients])
run = fk.train(fk.model("mlp", fed, classes=10), fed, "fedavg", rounds=10, cohort=5, progress=False)
print(f"accuracy of streams {run.history[-1]['test_accuracy']:.3f}")
