"""Compare three methods on your own model and data, test the differences, and draw a figure for a paper."""

from torch import nn

import fedkeel as fk

fed = fk.load("digits").split("dirichlet_per_class", clients=10, concentration=0.3)


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


# Runs with the same seed share initial weights, sampling and batches. Seven seeds are the fewest with which one of
# three comparisons can be significant.
methods = ["fedavg", fk.algorithm("scaffold", lr=0.2), fk.algorithm("fedavgm", lr=0.05)]
study = fk.compare(model, fed, methods, seeds=7, rounds=15, local_steps=5, target=0.7, out="runs/example")

print(study)
print(study.table[["method", "final_accuracy", "final_accuracy_std", "rounds_to_target"]].to_string(index=False))
print(study.differences.round(4).to_string(index=False))
print("best:", study.best)

study.plot().savefig("runs/example/figure.pdf")
print("page:", study.report("runs/example/page.html"))
