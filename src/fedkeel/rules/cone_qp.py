"""Projection on the cone {u : <u, M_j> >= 0 for every column j}, the quadratic program of GradMA.

Dual form: z >= 0 minimises 1/2 z'Az + q'z with A = M'M and q = M'p; the projection is u = p + Mz. Only the directions of
the columns matter, so they are scaled to unit norm, and columns that are zero are left out. Inner products are summed in
the precision of the vectors. All later arithmetic is in float64.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

BLAS = (torch.float32, torch.float64)  # dtypes whose inner products numpy computes by BLAS
TOLERANCE = 1e-10  # of ||p||: inner products above -TOLERANCE ||p|| count as non-negative
FEASIBLE, FEASIBLE_64 = 1e-6, 1e-10  # the same tolerance for a solution, from vectors in float32 and in float64
LARGE = 8.0  # a weight above LARGE ||p|| / ||column|| needs inner products in float64
SHORTEST = 1e-30  # a column of at most this length has lost its direction in float32, and counts as zero


def project(p: Tensor, columns: Sequence[Tensor]) -> Tensor:
    """The exact projection of p [..., d] for a few columns [..., d], for all clients at once. It overwrites p.

    The support of an optimal z has linearly independent columns, so one of the 2^C supports is the answer. All are solved.
    Of those that satisfy the optimality conditions, the one with the smallest z is taken.
    """
    feasible = FEASIBLE_64 if p.dtype == torch.float64 else FEASIBLE
    q = _dots([(m, p) for m in columns])  # [..., C]
    if (q >= 0).all():
        return p
    if p.dim() == 1 and _slide(p, columns, q):
        return p
    z, sure = _dual(p, columns, q, feasible)
    if not sure:  # almost opposite columns nearly cancel, so the sums need more precision than the vectors have
        exact, wide = p.double(), [m.double() for m in columns]
        z, _ = _dual(exact, wide, _dots([(m, exact) for m in wide]), feasible)
        return p.copy_(_moved(exact, wide, z))
    return _moved(p, columns, z)


def _moved(p: Tensor, columns: Sequence[Tensor], z: np.ndarray) -> Tensor:
    """p + Mz, in place."""
    weights = torch.as_tensor(z, dtype=p.dtype, device=p.device)
    for m, weight in zip(columns, weights.unbind(-1), strict=True):
        p.addcmul_(m, weight.unsqueeze(-1))
    return p


def _dual(p: Tensor, columns: Sequence[Tensor], q: np.ndarray, feasible: float) -> tuple[np.ndarray, bool]:
    """(z [..., C] for q = M'p, whether z is reliable).

    z is reliable if the optimality conditions hold, and if it is small enough that the precision of A and q does not matter.
    """
    corners, places = _corners(len(columns))
    products = _dots([*((columns[i], columns[j]) for i, j in corners), (p, p)])
    A = products[..., places]  # [..., C, C]
    squares, size = np.diagonal(A, axis1=-2, axis2=-1), np.sqrt(products[..., -1:])
    with np.errstate(all="ignore"):  # the engine finds numbers that are not finite in the client's result
        scale = np.where(squares > 0, 1 / np.sqrt(np.maximum(squares, 1e-300)), 0.0)  # 0 drops a zero column
        A, q = A * scale[..., :, None] * scale[..., None, :], np.where(size > 0, q * scale / size, 0.0)
        z, holds = _solve_by_enumeration(A, q, feasible)
        z = np.where((q >= -TOLERANCE).all(-1, keepdims=True), 0.0, z)
        return z * scale * size, holds and not (z > LARGE).any()


def _slide(p: Tensor, columns: Sequence[Tensor], q: np.ndarray) -> bool:
    """Moves p in place to the edge of its most violated constraint. If all others hold there, that is the answer: True."""
    j = int(q.argmin())
    beside = _dots([(m, columns[j]) for m in columns])  # [C]
    if not beside[j] > 0:
        return False
    z = -q[j] / beside[j]
    slack = q + z * beside
    slack[j] = 0.0
    if not (slack >= 0).all():
        return False
    p.add_(columns[j], alpha=z)
    return True


def _dots(pairs: Sequence[tuple[Tensor, Tensor]]) -> np.ndarray:
    """Inner products over the last dimension, [..., len(pairs)], as float64; BLAS sums the vectors of one client."""
    if all(a.dim() == 1 and a.device.type == "cpu" and a.dtype in BLAS for pair in pairs for a in pair):
        with np.errstate(all="ignore"):  # the engine finds numbers that are not finite in the client's result
            return np.array([np.dot(a.numpy(), b.numpy()) for a, b in pairs], dtype=np.float64)  # faster than torch.dot
    return torch.stack([(a * b).sum(-1) for a, b in pairs], dim=-1).double().cpu().numpy()


@functools.cache
def _corners(C: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The pairs (i, j) of the upper half of a C x C matrix, and for each of its entries the index of its pair, [C, C]."""
    corners = list(itertools.combinations_with_replacement(range(C), 2))
    return corners, np.array([[corners.index((min(i, j), max(i, j))) for j in range(C)] for i in range(C)])


@functools.cache
def _supports(C: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All supports [2^C, C] of 0 and 1; for each, which entries of a matrix it keeps, and what replaces the others."""
    supports = np.array(list(itertools.product((0.0, 1.0), repeat=C)))
    return supports, supports[:, :, None] * supports[:, None, :], np.eye(C) * (1 - supports)[:, None, :]


def _solve_by_enumeration(A: np.ndarray, q: np.ndarray, feasible: float) -> tuple[np.ndarray, bool]:
    """argmin over z >= 0 of 1/2 z'Az + q'z, with C small, A [..., C, C] and q [..., C] of unit vectors -> (z [..., C],
    whether all of it is within `feasible` of optimal)."""
    supports, inside, outside = _supports(q.shape[-1])
    target = -q[..., None, :] * supports  # [..., 2^C, C]
    with np.errstate(all="ignore"):  # a singular support gives inf or nan, which is never the least violation
        systems = torch.from_numpy(A[..., None, :, :] * inside + outside)  # numpy's own solver refuses singular ones
        z = torch.linalg.solve_ex(systems, torch.from_numpy(target)[..., None])[0][..., 0].numpy()
        slack = (A[..., None, :, :] @ z[..., None])[..., 0] + q[..., None, :]
        violation = np.concatenate((-z, -slack), axis=-1).max(-1)  # [..., 2^C]
    violation = np.where(np.isnan(violation), np.inf, violation)
    # Dependent columns have many solutions. Rounding may make one with a huge z look best, so the smallest is taken.
    holds = violation <= feasible
    found = holds.any(-1, keepdims=True)
    best = np.where(found, np.where(holds, np.abs(z).sum(-1), np.inf), violation).argmin(-1)
    return np.take_along_axis(z, best[..., None, None], axis=-2)[..., 0, :], bool(found.all())


def cone_weights(A: np.ndarray, q: np.ndarray, size: float) -> np.ndarray:
    """The dual solution z [C] for a Gram matrix A [C, C] and q = M'p [C], where size = ||p||; C may be large.

    A non-negative least-squares problem: with A = R'R (from its eigenvalues, since A may be singular) it is
    min ||R z + b|| over z >= 0, R'b = q. The support that it finds is then solved on A itself, to full accuracy.
    """
    norm = np.sqrt(np.diag(A))
    live = norm > SHORTEST
    z = np.zeros(len(q))
    if not live.any() or (q[live] / norm[live]).min() >= -TOLERANCE * size:
        return z
    unit, qn = A[np.ix_(live, live)] / np.outer(norm[live], norm[live]), q[live] / norm[live]
    values, vectors = np.linalg.eigh(unit)
    keep = values > values[-1] * 1e-13
    root = np.sqrt(values[keep])
    from scipy.optimize import nnls  # this import takes half a second, so only runs with projections make it

    weights, _ = nnls(root[:, None] * vectors[:, keep].T, -(vectors[:, keep].T @ qn) / root, maxiter=30 * len(qn))
    support = weights > 0
    exact = np.zeros_like(weights)
    exact[support] = np.linalg.lstsq(unit[np.ix_(support, support)], -qn[support], rcond=None)[0]
    if _violation(unit, qn, exact) <= _violation(unit, qn, weights):
        weights = np.maximum(exact, 0.0)
    z[live] = weights / norm[live]
    return z


def _violation(A: np.ndarray, q: np.ndarray, z: np.ndarray) -> float:
    return max(float((-z).max()), float((-(A @ z + q)).max()))
