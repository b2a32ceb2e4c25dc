"""An LSTM on texts: the model says how it reads them."""

import random

import fedkeel as fk

rng = random.Random(0)
GOOD, BAD = ["good", "fine", "lovely", "great"], ["bad", "dull", "poor", "awful"]
OTHER = ["the", "film", "was", "actor", "music", "and", "it", "plot"]


def review(label: int) -> str:
    words = rng.choices(OTHER, k=6) + rng.choices(GOOD if label else BAD, k=2)
    rng.shuffle(words)
    return " ".join(words)


def client(n: int) -> tuple[list[str], list[int]]:
    labels = [rng.randint(0, 1) for _ in range(n)]
    return [review(label) for label in labels], labels


fed = fk.Federation.from_arrays([client(60) for _ in range(8)], test=client(200))
print(fed, fed[0].x[0])
model = fk.model("lstm", fed, length=16)
method = fk.algorithm("fedavg", lr=0.5)
run = fk.train(model, fed, method, rounds=15, cohort=4, progress=False)
print(f"accuracy {run.history[-1]['test_accuracy']:.3f}")
print("tokens of a new text:", run.model.reads(["a lovely film"]).tolist())
