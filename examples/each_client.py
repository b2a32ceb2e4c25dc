"""How good is the model for each client? And how much would a few local steps help each of them?"""

from torch import nn

import fedkeel as fk

fed = fk.load("digits").split("dirichlet_per_class", clients=20, concentration=0.2)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
run = fk.train(
    model,
    fed,
    fk.algorithm("fedavg", lr=0.3),
    rounds=20,
    cohort=10,
    validation=0.2,
    evaluate_on="clients",
    evaluate_every=10,
    progress=False,
)
last = run.history[-1]
print(f"mean over clients  {last['clients_accuracy']:.3f}, standard deviation {last['clients_accuracy_spread']:.3f}")
print(f"worst tenth        {last['clients_accuracy_worst']:.3f}")
print(f"gain of five steps {last['clients_accuracy_gain']:+.3f}")
assert last["clients_accuracy_worst"] <= last["clients_accuracy"]
