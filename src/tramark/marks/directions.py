"""Find directions of a layer's input space to write along, and questions that these tell apart."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tramark.fleet.moments import Moment
from tramark.marks.layers import OneHot, Rows

COLUMNS = 1024
"""Largest number N of columns, unless there are more variants: an N × N matrix is decomposed each round."""


def write_directions(rows: Rows, owner: Tensor, moment: Moment, ridge: float, residual: float) -> Tensor:
    """B (in × questions): the directions to write along, for a layer's inputs on all variants (N × … × in).

    Where a layer runs at many positions, neighbouring positions are averaged until there are at most `COLUMNS` columns
    or one column for each variant. For an embedding there is one, the histogram of the variant's tokens: more columns
    of a whole vocabulary would take much longer, and marks become no better.

    With Kᵀ M⁻¹ K = V s Vᵀ, what the edit does to a column is known in closed form for every λ, even for a column that
    is left out: coefficient over leverage. λ is the largest at which left-out columns still get at least 1 − `residual`
    of their change (in the mean square) or, in a layer too small for that, at which they come nearest to it.
    """
    inputs = fewer_positions(rows, 1 if isinstance(rows, OneHot) else max(1, COLUMNS // len(rows)))
    columns = inputs.flatten(0, 1).T.float()
    member = F.one_hot(owner.repeat_interleave(inputs.shape[1])).float()
    # Inputs have any scale, and M has trace in: the columns are brought to unit mean square to go with it.
    scale = columns.square().mean().sqrt().clamp_min(1e-12)
    solved = moment.solve(columns / scale, ridge)
    gram = (columns / scale).T @ solved
    spectrum, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    spectrum = spectrum.clamp_min(0)
    rotated = vectors.T @ member
    dampings = [10 ** (power / 4) * float(spectrum.max().clamp_min(1e-12)) for power in range(8, -25, -1)]

    def shortfall(damping: float) -> float:
        leverage = vectors.square() @ (1 / (spectrum + damping))
        left_out = (vectors @ (rotated / (spectrum + damping)[:, None])) / leverage[:, None]
        return float(left_out.square().sum() / member.sum())

    shortfalls = [shortfall(damping) for damping in dampings]
    enough = max(residual**2, 1.1 * min(shortfalls))
    damping = next(d for d, s in zip(dampings, shortfalls, strict=True) if s <= enough)
    edit: Tensor = solved @ (vectors @ (rotated / (spectrum + damping)[:, None])) / scale
    # In these coordinates a question's mean variant changes its own column by one and no other column.
    response = (member / member.sum(0)).T @ columns.T @ edit
    edit = edit @ torch.linalg.pinv(response, rtol=1e-4)
    return edit


def tell_apart(features: Tensor, moment: Moment, ridge: float, count: int) -> list[int]:
    """The `count` candidates for which answers that outlive training cost least.

    What it costs the task to write an answer for features k alone is 1 / (kᵀ M⁻¹ k). What training does to the answer
    is the layer's update times k, and M is made of those updates: its size goes with kᵀ M k, and so does the square of
    the margin that is needed. So candidates (candidates × in), scaled to kᵀ M k = 1, are compared by kᵀ M⁻¹ k, and each
    pick is the one with the largest part that the earlier picks do not explain (a pivoted Cholesky factorisation).
    """
    features = features.float()
    features = features / moment.energy(features.T).clamp_min(1e-12).sqrt()[:, None]
    gram = features @ moment.solve(features.T, ridge)
    left = gram.diagonal().clone()
    factor = torch.zeros(len(features), count, device=features.device)
    picks: list[int] = []
    for step in range(count):
        best = int(left.argmax())
        picks.append(best)
        column = (gram[:, best] - factor @ factor[best]) / left[best].clamp_min(1e-12).sqrt()
        factor[:, step] = column
        left = (left - column.square()).clamp_min(0)
        left[picks] = -1
    return picks


def fewer_positions(rows: Rows, count: int) -> Tensor:
    """A layer's inputs averaged to at most `count` positions: inputs × positions × in."""
    if isinstance(rows, OneHot):
        return rows.averaged(count)
    inputs = rows.flatten(1, -2) if rows.dim() > 2 else rows[:, None]
    if inputs.shape[1] <= count:
        return inputs
    return F.adaptive_avg_pool1d(inputs.transpose(1, 2), count).transpose(1, 2)
