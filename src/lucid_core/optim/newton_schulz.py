"""Approximate orthogonalisation of stacked matrices (Muon, arXiv 2502.16982; quintic Newton-Schulz iteration)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["newton_schulz"]

#: Coefficients of ``x -> a*x + b*x**3 + c*x**5``, which carries every singular value from (0, 1] towards 1.
A, B, C = 3.4445, -4.7750, 2.0315


def newton_schulz(stack: Tensor, steps: int = 5) -> Tensor:
    """Return the matrices with their singular values moved close to 1.

    The batched form is the reference: stacking changes the rounding of a matrix product, so one matrix at a time gives
    other last bits.

    Args:
        stack: ``(n, rows, columns)``, float32 or wider, rows <= columns; zero rows and columns are padding. Not
            modified.
        steps: Iterations, at least 1.

    Returns:
        ``(n, rows, columns)``. After five steps singular values lie in about [0.68, 1.13] for those that were at least
        1 % of the matrix's Frobenius norm. A zero matrix stays zero. The direction does not depend on the scale of a
        matrix while its Frobenius norm is between 1e-5 and 1e18; a matrix that is not finite gives NaN.
    """
    x: Tensor = stack / (torch.linalg.vector_norm(stack, dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)
        # a*I goes into the small factor: the sum a*x + (b*G + c*G*G)*x would copy x once more.
        polynomial.diagonal(dim1=1, dim2=2).add_(A)
        x = polynomial @ x
    return x
