"""A site's data as a federation, so that local work reads them as it does in a simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkeel.data.dataset_pool import is_dataset
from fedkeel.data.federation import Dataset, Federation


def as_federation(data: Any, client: int) -> Federation:
    """What `load_data` returned: a federation that contains this client, or the data of this client alone.

    These are a pair (x, y), a Dataset as `from_csv` returns it, or a data set of torch or of Hugging Face.

    The seed of a batch depends on the client's number, so the site's data must have that number here too. The
    site does not have the data of the clients before it. A federation cannot have clients without samples, so
    each of them gets sample 0; nothing reads it.
    """
    if isinstance(data, Federation):
        return data
    prepare = augment = None
    if isinstance(data, Dataset):
        x, y, prepare, augment = data.x, data.y, data.prepare, data.augment
    else:
        one = Federation.from_datasets([data]) if is_dataset(data) else Federation.from_arrays([data])
        x, y = one.x, one.y
    n = len(x)
    offsets = np.append(np.arange(client + 1), client + n)
    order = np.concatenate([np.zeros(client, dtype=np.int64), np.arange(n)])
    return Federation(x, y, offsets, order, prepare=prepare, augment=augment)
