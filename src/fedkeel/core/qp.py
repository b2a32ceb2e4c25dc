"""Projection on the cone {u : <u, M_j> >= 0 for every column j}, the quadratic program of GradMA.

Dual form: z >= 0 minimises 1/2 z'Az + q'z with A = M'M and q = M'p; the projection is u = p + Mz. Only the directions of
the columns matter, so they are scaled to unit norm, and columns that are zero are left out. All of it is in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

TOLERANCE = 1e-10  # of ||p||: inner products above -TOLERANCE ||p|| count as non-negative


def project(p: Tensor, columns: Sequence[Tensor]) -> Tensor:
    """The projection of p [..., d] for a few columns [..., d], exact, for all clients at once.

    An optimal z has its support on linearly independent columns, so one of the 2^C supports is the answer: all of them
    are solved and the one that violates the optimality conditions least is taken. Written over p.
    """
    inner = [_dot(m, p) for m in columns]
    if all(bool((z >= 0).all()) for z in inner):
        return p
    C = len(columns)
    squares = torch.stack([_dot(m, m) for m in columns], dim=-1)  # [..., C]
    scale = torch.where(squares > 0, squares.clamp_min(1e-300).rsqrt(), 0.0)  # 0 drops a zero column
    q = torch.stack(inner, dim=-1) * scale
    limit = -TOLERANCE * _dot(p, p).sqrt().unsqueeze(-1)
    if bool((q >= limit).all()):
        return p
    A = torch.diag_embed((squares > 0).double())  # [..., C, C]
    for i, j in itertools.combinations(range(C), 2):
        A[..., i, j] = A[..., j, i] = _dot(columns[i], columns[j]) * scale[..., i] * scale[..., j]
    z = _solve_by_enumeration(A, q) * scale
    z = torch.where((q >= limit).all(-1, keepdim=True), 0.0, z).to(p.dtype)
    for j, m in enumerate(columns):
        p.addcmul_(m, z[..., j : j + 1])
    return p


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products over the last dimension, [...], in float64 (summed in the dtype of the vectors if that is one row)."""
    return (torch.dot(a, b) if a.dim() == 1 and b.dim() == 1 else (a * b).sum(-1)).double()


def _solve_by_enumeration(A: Tensor, q: Tensor) -> Tensor:
    """argmin over z >= 0 of 1/2 z'Az + q'z for A [..., C, C] and q [..., C], with C small -> z [..., C]."""
    C = q.shape[-1]
    supports = torch.tensor(list(itertools.product((0.0, 1.0), repeat=C)), dtype=A.dtype, device=A.device)  # [2^C, C]
    eye = torch.eye(C, dtype=A.dtype, device=A.device)
    inside = supports.unsqueeze(-1) * supports.unsqueeze(-2)  # [2^C, C, C]
    system = A.unsqueeze(-3) * inside + eye * (1 - supports).unsqueeze(-1)
    target = -q.unsqueeze(-2) * supports  # [..., 2^C, C]
    z: Tensor = torch.linalg.solve_ex(system, target.unsqueeze(-1))[0].squeeze(-1)  # singular supports give inf or nan
    slack = (A.unsqueeze(-3) @ z.unsqueeze(-1)).squeeze(-1) + q.unsqueeze(-2)
    violation = torch.maximum((-z).amax(-1), (-slack).amax(-1)).nan_to_num(nan=torch.inf)  # [..., 2^C]
    best = violation.argmin(-1, keepdim=True).unsqueeze(-1).expand(*violation.shape[:-1], 1, C)
    return z.gather(-2, best).squeeze(-2)


def cone_weights(A: np.ndarray, q: np.ndarray, size: float) -> np.ndarray:
    """The dual solution z [C] for a Gram matrix A [C, C] and q = M'p [C], where size = ||p||; C may be large.

    A non-negative least-squares problem: with A = R'R (from its eigenvalues, since A may be singular) it is
    min ||R z + b|| over z >= 0, R'b = q. The support that it finds is then solved on A itself, to full accuracy.
    """
    norm = np.sqrt(np.diag(A))
    live = norm > 0
    z = np.zeros(len(q))
    if not live.any() or (q[live] / norm[live]).min() >= -TOLERANCE * size:
        return z
    unit, qn = A[np.ix_(live, live)] / np.outer(norm[live], norm[live]), q[live] / norm[live]
    values, vectors = np.linalg.eigh(unit)
    keep = values > values[-1] * 1e-13
    root = np.sqrt(values[keep])
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
