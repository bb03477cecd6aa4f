"""Limit the size of an edit by how much of the clients' gradients would run back through it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tramark.fleet.moments import Pull

BRAKE = 0.6
"""Largest allowed ratio of the gradient that runs back through an edit to the gradient that runs through and around
its layer, each in its strongest direction."""


@dataclass(frozen=True, eq=False)
class Brake:
    """Says whether edits R Bᵀ of a layer are small enough beside what the layer does already.

    The clients' gradients run back through the edited layer into those before it, and what comes through the edit is
    noise to them. So its largest singular value is compared with the layer's own, both weighed by how the gradients
    pull at the layer's outputs. In a residual net most of a gradient goes around the layer, and an edit may be larger.
    """

    limit: float
    basis: Tensor
    triangle: Tensor
    """B = QR."""
    pull: Pull

    @classmethod
    def of(cls, weight: Tensor, edit: Tensor, pull: Pull, around: float) -> "Brake":
        basis, triangle = torch.linalg.qr(edit)
        basis[~edit.any(dim=1)] = 0  # not just nearly: an input that is not written to stays exactly as it is
        return cls(BRAKE * math.hypot(1, around) * _gain(weight, pull), basis, triangle, pull)

    def excess(self, change: Tensor) -> float:
        """How many times larger than allowed the largest of all clients' changes is; at most 1 may pass."""
        edits = self.pull.root(change @ self.triangle.T)
        return float(torch.linalg.eigvalsh(edits.mT @ edits).max().clamp_min(0).sqrt()) / self.limit


def excess(changes: Sequence[Tensor], brakes: Sequence[Brake]) -> float:
    """How many times larger than allowed the largest change of any layer is."""
    return max(brake.excess(change) for brake, change in zip(brakes, changes, strict=True))


def _gain(matrix: Tensor, pull: Pull) -> float:
    """The largest singular value of a layer's matrix as the pull weighs it, to within a few per cent.

    By power iteration on a few vectors at once; the weighed matrix is never formed.
    """
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(matrix.shape[1], 8, generator=generator).to(matrix)
    for _ in range(3):
        answers = pull.root(pull.root(matrix @ F.normalize(vectors, dim=0)))
        vectors = (answers.T @ matrix).T
    return float(torch.linalg.matrix_norm(pull.root(matrix @ torch.linalg.qr(vectors).Q), ord=2))
