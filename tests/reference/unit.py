"""A vector scaled to length one, for the methods that perturb the weights. The zero vector stays zero (rule R10)."""

import numpy as np


def unit(u: np.ndarray) -> np.ndarray:
    norm = np.sqrt(np.sum(u * u))
    if norm == 0:
        return np.zeros_like(u)
    return u / norm
