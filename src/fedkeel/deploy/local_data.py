"""A site's data as a federation, so that local work reads them as it does in a simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkeel.data.federation import Federation


def as_federation(data: Any, client: int) -> Federation:
    """What `load_data` returned: a federation that contains this client, or the (x, y) of this client alone.

    The seed of a batch depends on the client's number, so the site's data must have that number here too. The
    site does not have the data of the clients before it. A federation cannot have clients without samples, so
    each of them gets sample 0; nothing reads it.
    """
    if isinstance(data, Federation):
        return data
    one = Federation.from_arrays([data])
    n = len(one.y)
    offsets = np.append(np.arange(client + 1), client + n)
    order = np.concatenate([np.zeros(client, dtype=np.int64), np.arange(n)])
    return Federation(one.x, one.y, offsets, order)
