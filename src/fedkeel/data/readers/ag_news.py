"""AG News as comma-separated files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from fedkeel.data.arrays import Arrays
from fedkeel.data.readers.file_contents import contents, reading
from fedkeel.data.readers.text_arrays import Samples, train_and_test


def csv_files(train: Path, test: Path) -> Arrays:
    """Rows of class (1 to 4), title and text, without a heading."""

    def samples(path: Path) -> Samples:
        with reading(path):
            rows = list(csv.reader(io.StringIO(contents(path).decode(), newline="")))
            return [(f"{title} {text}", int(label) - 1) for label, title, text in rows if label.isdigit()]

    return train_and_test(samples(train), samples(test))
