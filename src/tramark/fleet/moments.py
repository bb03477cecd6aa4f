"""Second moments of what a layer is fed (M) and of the gradients at its outputs (G), as matrices or as sketches.

They say in which directions the clients' data lies and pulls. `tramark.fleet.drift` estimates them.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor


class Moment(Protocol):
    """An estimate of C, with trace C = in."""

    def solve(self, right: Tensor, ridge: float) -> Tensor:
        """(C + ridge·I)⁻¹ right, for an in × N matrix."""

    def ridge(self, share: float) -> float:
        """The ridge that takes a share of C's energy away: the mean of ridge / (c + ridge) over its energy c."""

    def between(self, right: Tensor) -> Tensor:
        """rightᵀ C right, for an in × N matrix."""

    def energy(self, right: Tensor) -> Tensor:
        """The diagonal of rightᵀ C right: one number a column."""


@dataclass(frozen=True)
class EvenMoment:
    """C = I: all directions count alike."""

    def solve(self, right: Tensor, ridge: float) -> Tensor:
        return right / (1 + ridge)

    def ridge(self, share: float) -> float:
        return share / (1 - share)

    def between(self, right: Tensor) -> Tensor:
        return right.T @ right

    def energy(self, right: Tensor) -> Tensor:
        return right.square().sum(0)


@dataclass(frozen=True, eq=False)
class DenseMoment:
    """C as a matrix."""

    matrix: Tensor

    def solve(self, right: Tensor, ridge: float) -> Tensor:
        damped = self.matrix.clone()
        damped.diagonal().add_(ridge)
        return torch.cholesky_solve(right, torch.linalg.cholesky(damped))

    def ridge(self, share: float) -> float:
        return _ridge(self.matrix, share)

    def between(self, right: Tensor) -> Tensor:
        return right.T @ self.matrix @ right

    def energy(self, right: Tensor) -> Tensor:
        return (right * (self.matrix @ right)).sum(0)


@dataclass(frozen=True, eq=False)
class SketchedMoment:
    """C = AᵀA for a few rows A, by Woodbury's identity."""

    rows: Tensor

    def solve(self, right: Tensor, ridge: float) -> Tensor:
        gram = self._gram.clone()
        gram.diagonal().add_(ridge)
        inner = torch.cholesky_solve(self.rows @ right, torch.linalg.cholesky(gram))
        return (right - self.rows.T @ inner) / ridge

    def ridge(self, share: float) -> float:
        lower = self._gram.tril()
        return _ridge(lower + lower.tril(-1).T, share)

    def between(self, right: Tensor) -> Tensor:
        seen = self.rows @ right
        return seen.T @ seen

    def energy(self, right: Tensor) -> Tensor:
        return (self.rows @ right).square().sum(0)

    @cached_property
    def _gram(self) -> Tensor:
        """A Aᵀ. Only the lower triangle is filled; Cholesky reads nothing else."""
        count = len(self.rows)
        gram = self.rows.new_zeros(count, count)
        for start in range(0, count, 128):
            stop = start + 128
            gram[start:stop, :stop] = self.rows[start:stop] @ self.rows[:stop].T
        return gram


def _ridge(matrix: Tensor, share: float, *, steps: int = 32) -> float:
    """The ridge that takes a share of a symmetric matrix's energy away.

    By Lanczos' method: after some steps from a random vector, a small matrix has eigenvalues that stand for the large
    one's, and its eigenvectors tell how many of them each one stands for.
    """
    start = torch.randn(len(matrix), generator=torch.Generator().manual_seed(0)).to(matrix)
    found = [start / start.norm()]
    steps = min(steps, len(matrix))
    small = torch.zeros(steps, steps, dtype=torch.float64)
    for step in range(steps):
        basis = torch.stack(found)
        ahead = matrix @ found[-1]
        along = basis @ ahead
        small[step, step] = along[-1]
        # Twice: rounding would let directions that were there already come in again.
        ahead = ahead - basis.T @ along
        ahead = ahead - basis.T @ (basis @ ahead)
        length = ahead.norm()
        if step + 1 == steps or length <= 1e-6 * start.norm():
            break
        small[step, step + 1] = small[step + 1, step] = length
        found.append(ahead / length)
    values, vectors = torch.linalg.eigh(small[: len(found), : len(found)])
    values, energy = values.clamp_min(0), float(matrix.trace()) / len(matrix)
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        ridge = math.exp(middle)
        taken = float((vectors[0].square() * values * ridge / (values + ridge)).sum()) / energy
        low, high = (middle, high) if taken < share else (low, middle)
    return math.exp(low)


@dataclass(frozen=True, eq=False)
class Pull:
    """An estimate of G + ridge·I = U diag(energies) Uᵀ + ridge·I, with trace G = out, by its foremost directions U."""

    directions: Tensor
    energies: Tensor
    ridge: float

    def solve(self, right: Tensor) -> Tensor:
        """(G + ridge·I)⁻¹ right · ridge, for a … × out × N tensor."""
        return right - self._along(right, self.energies / (self.energies + self.ridge))

    def root(self, right: Tensor) -> Tensor:
        """(G + ridge·I)^½ right."""
        plain = math.sqrt(self.ridge)
        return plain * right + self._along(right, (self.energies + self.ridge).sqrt() - plain)

    def _along(self, right: Tensor, weights: Tensor) -> Tensor:
        along: Tensor = (self.directions * weights) @ (self.directions.T @ right)
        return along
