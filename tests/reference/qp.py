"""The projection of "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic
Forgetting", eq. (2): min 1/2 |p - u|^2 subject to <u, M[j]> >= 0 for every column j.

Brute force: the minimiser is the projection of p on the orthogonal complement of the columns that are active at it, so
one of the 2^C active sets yields it; every other feasible candidate is farther from p. Feasibility is tested on unit
columns within 1e-10 |p|, the span of an active set is taken from its SVD, so dependent columns do no harm."""

from itertools import combinations

import numpy as np


def project(p: np.ndarray, columns: list[np.ndarray]) -> np.ndarray:
    unit = [column / np.linalg.norm(column) for column in columns if np.linalg.norm(column) > 0]
    tol = 1e-10 * np.linalg.norm(p)
    best, best_distance = p, np.inf
    for size in range(len(unit) + 1):
        for active in combinations(unit, size):
            u = p.copy()
            if active:
                basis, singular, _ = np.linalg.svd(np.stack(active, axis=1), full_matrices=False)
                basis = basis[:, singular > 1e-12 * singular[0]]
                u = p - basis @ (basis.T @ p)
            if all(u @ column >= -tol for column in unit) and np.linalg.norm(u - p) < best_distance:
                best, best_distance = u, np.linalg.norm(u - p)
    assert np.isfinite(best_distance)
    return best
