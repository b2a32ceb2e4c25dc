"""Your own table: patients of several hospitals, and a schema that travels to a hospital.

The hospital at the end has only patients who are ill. With the schema, "ill" is the same class there as everywhere.
"""

import tempfile
from pathlib import Path

from sklearn.datasets import load_breast_cancer

import fedkeel as fk

folder = Path(tempfile.mkdtemp())
bunch = load_breast_cancer()
names = [str(name).replace(" ", "_") for name in bunch.feature_names[:10]]
rows = [
    [*(f"{value:.5g}" for value in x[:10]), f"hospital{i % 7}", "healthy" if y else "ill"]
    for i, (x, y) in enumerate(zip(bunch.data, bunch.target, strict=True))
]


def write(path: Path, lines: list[list[str]]) -> Path:
    path.write_text("\n".join(",".join(line) for line in [[*names, "hospital", "state"], *lines]))
    return path


data = fk.from_csv(write(folder / "patients.csv", rows), label="state", key="hospital")
fed = data.split("by_key", clients=7)
print(fed)
run = fk.train(fk.model("mlp", fed), fed, "fedavg", rounds=20, cohort=7, out=folder / "run", progress=False)
print(f"accuracy {run.history[-1]['test_accuracy']:.3f}")

ill = write(folder / "ill.csv", [row for row in rows if row[-1] == "ill"][:50])
site = fk.from_csv(ill, schema=folder / "run")
print(f"classes {site.schema.classes}; at this hospital: {sorted(set(site.y.tolist()))}")
