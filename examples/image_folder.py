"""A folder of pictures, one folder per class. The file name says who wrote a digit."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import fedkeel as fk

folder = Path(tempfile.mkdtemp()) / "digits"
bunch = load_digits(n_class=4)
for i, (image, label) in enumerate(zip(bunch.images, bunch.target, strict=True)):
    place = folder / f"class{label}"
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 15).astype(np.uint8)).save(place / f"writer{i % 6}_{i}.png")

data = fk.from_folder(folder, size=16, key=r"writer(\d+)_")
fed = data.split("by_key", clients=6)
print(data, data.schema.classes)
run = fk.train(fk.model("cnn", fed), fed, "fedavgm", rounds=8, cohort=3, progress=False)
print(f"accuracy {run.history[-1]['test_accuracy']:.3f}")
