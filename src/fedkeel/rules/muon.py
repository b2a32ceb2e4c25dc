"""Muon: the direction of a matrix, with all its singular values brought near 1."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedkeel.core.flat import Layers

# One step: X <- A X + (B X X' + C (X X')^2) X. Five of them bring singular values into about [0.7, 1.15].
A, B, C = 3.4445, -4.7750, 2.0315
WIDE = 1.5  # from this ratio of columns to rows on, fewer operations are needed if the steps are done on X X' alone


def newton_schulz(M: Tensor, iterations: int) -> Tensor:
    """Nearly the orthogonal factor of every matrix, [..., r, c]: its singular values become about 1."""
    X: Tensor = M / (torch.linalg.matrix_norm(M, keepdim=True) + 1e-7)
    tall = X.shape[-2] > X.shape[-1]
    if tall:  # the smaller of the two products is cheaper
        X = X.mT
    if X.shape[-1] > WIDE * X.shape[-2]:
        X = _polynomial(X @ X.mT, iterations) @ X
    else:
        for _ in range(iterations):
            square = X @ X.mT
            X = A * X + (B * square + C * square @ square) @ X
    return X.mT if tall else X


def _polynomial(square: Tensor, iterations: int) -> Tensor:
    """The matrix P with X after all steps = P X, from X X' [..., r, r].

    A step multiplies X from the left by Y = A + B X X' + C (X X')^2. So the next X X' is Y X X' Y. Only small square
    matrices are multiplied, whatever the width of X.
    """
    Y = P = _factor(square)
    for _ in range(iterations - 1):
        square = Y @ square @ Y
        Y = _factor(square)
        P = Y @ P
    return P


def _factor(square: Tensor) -> Tensor:
    """Y of one step."""
    Y = B * square + C * square @ square
    Y.diagonal(dim1=-2, dim2=-1).add_(A)
    return Y


def in_matrices(layers: Layers, like: Tensor) -> Tensor:
    """1 for the entries of parameter tensors with two or more dimensions, 0 for others; [d]."""
    return torch.cat(
        [like.new_full((size,), float(len(s) > 1)) for size, s in zip(layers.sizes, layers.shapes, strict=True)]
    )


def muon_direction(u: Tensor, layers: Layers, iterations: int, scale: str) -> Tensor:
    """Orthogonalises in place every layer of u [..., d] that is a matrix, times sqrt(max(1, r / c)). Other layers stay.

    A tensor with more than two dimensions is read as a matrix [first, rest]. scale: "matrix" takes r / c from that matrix,
    "original" from the last two dimensions of the tensor.
    """
    for part, shape in zip(u.split_with_sizes(layers.sizes, -1), layers.shapes, strict=True):
        if len(shape) > 1:
            matrix = part.unflatten(-1, (shape[0], -1))
            rows, columns = matrix.shape[-2:] if scale == "matrix" else shape[-2:]
            matrix.copy_(newton_schulz(matrix, iterations).mul_(math.sqrt(max(1.0, rows / columns))))
    return u
