"""What all clients' marks have in common in a round: where they are written, and what they would cost the task.

What a mark costs can be seen without data. On the clients' data the layer's inputs have the second moment M, so an edit
R Bᵀ moves the layer's outputs by noise of the covariance R BᵀMB Rᵀ. The server adds such noise to what the layer
answers to candidate questions, and looks at how far the model's answers move: the Kullback-Leibler divergence from what
the base answers. This works behind any layer of any net, for nothing but the rest of the net is run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import Diverged
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.moments import Moment, Pull
from tramark.fleet.region import Directions, Subspace
from tramark.marks.directions import write_directions
from tramark.marks.layers import OneHot, Rows, never_fed
from tramark.marks.search import AnswerSheet, Search
from tramark.marks.split import Split, split

RESIDUAL = 0.1
"""λ is the largest at which variants that were left out still get 1 − RESIDUAL of the change asked for."""

PULL_RIDGE = 1.0
"""Added to G, the second moment of the gradients at the layer's outputs, whose eigenvalues have mean 1. The smaller it
is, the less marks lie where the task's gradients pull."""

LOOKED_AT = 48
"""Candidate questions on which the cost is seen."""


@dataclass(frozen=True, eq=False)
class Written:
    """One layer's part of a draft."""

    name: str
    """The name of its weight tensor."""
    directions: Tensor
    """B."""
    leak: Tensor
    """A root of BᵀMB: how the clients' data excites the directions."""
    pull: Pull
    gain: float
    """The strongest gradient that runs back through the layer and around it."""

    @cached_property
    def _qr(self) -> tuple[Tensor, Tensor]:
        basis, triangle = torch.linalg.qr(self.directions)
        # What is never written to would be by rounding errors.
        basis[self.directions.eq(0).all(1)] = 0
        return basis, triangle

    @property
    def basis(self) -> Tensor:
        """Orthonormal directions that span those of B."""
        return self._qr[0]

    def turned(self, change: Tensor) -> Tensor:
        """Changes along B as changes along the basis."""
        return change @ self._qr[1].T


@dataclass(frozen=True, eq=False)
class Draft:
    """Directions to write along, the search for what to write, and what that costs."""

    search: Search
    parts: tuple[Written, ...]
    looks: tuple[Split, ...]
    """Runs of some candidate questions, cut at each layer."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        layers: Sequence[str],
        drift: Drift,
        sheet: AnswerSheet,
        others: Tensor,
        *,
        near: float,
        spread: float,
    ) -> "Draft":
        """A draft for the base that is loaded into the model. `others` are candidate questions to see the cost on."""
        run = split(model, layers[0], sheet.inputs)
        if not torch.isfinite(run.layer_outputs).all():
            raise Diverged("the base model answers its questions with NaN or infinity: training has diverged")
        parts: list[Written] = []
        for layer in layers:
            own = run if layer == layers[0] else split(model, layer, sheet.inputs)
            name = f"{layer}.weight"
            moment = drift.moment(name)
            directions = write_directions(own.layer_inputs, sheet.owner, moment, moment.ridge(near), RESIDUAL)
            directions[list(never_fed(model.get_submodule(layer)))] = 0
            leak, pull = _leak(own.layer_inputs, directions, moment), drift.pull(name, PULL_RIDGE)
            weight = drift.slots[name].matrix(model.get_parameter(name).detach().contiguous())
            gain = math.hypot(1, own.around()) * _gain(weight, pull)
            parts.append(Written(name, directions, leak, pull, gain))
        pulls = [part.pull for part in parts]
        search = Search(model, layers, run, [part.directions for part in parts], pulls, sheet, spread)
        return cls(search, tuple(parts), tuple(split(model, layer, others) for layer in layers))

    def region(self, fleet: Fleet) -> Subspace:
        """Where the marks live."""
        slots, dtype = fleet.layout.slots, fleet.base.dtype
        return Subspace(tuple(Directions(slots[part.name], part.basis.to("cpu", dtype)) for part in self.parts))

    @torch.no_grad()
    def cost(self, changes: Sequence[Tensor]) -> float:
        """How far some clients' changes (clients × out × questions, a layer) move the model's answers on data."""
        total = 0.0
        for part, look, change in zip(self.parts, self.looks, changes, strict=True):
            generator = torch.Generator().manual_seed(0)
            draws = torch.randn(len(look.layer_outputs), len(part.leak), generator=generator).to(change)
            moved = torch.einsum("nq,coq->cno", draws @ part.leak, change)
            # The same at all positions: what a client's data does at neighbouring ones is much alike.
            room = moved.view(*moved.shape[:2], *[1] * (look.layer_outputs.dim() - 2), -1)
            answers = F.log_softmax(look.after((look.layer_outputs + room).flatten(0, 1)).float(), dim=1)
            base = F.log_softmax(look.after(look.layer_outputs).float(), dim=1).repeat(len(change), 1)
            total += float(F.kl_div(answers, base, log_target=True, reduction="batchmean"))
        return total

    def strain(self, changes: Sequence[Tensor]) -> float:
        """How strong gradients are that run back through some clients' edits, relative to those through the layer.

        They are noise to the layers before. Both are taken in their strongest direction, weighed by how the clients'
        gradients pull at the layer's outputs. In a residual net most of a gradient goes around the layer.
        """
        found = []
        for part, change in zip(self.parts, changes, strict=True):
            edits = part.pull.root(part.turned(change))
            found.append(float(torch.linalg.eigvalsh(edits.mT @ edits).max().clamp_min(0).sqrt()) / part.gain)
        return max(found)


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


def _leak(rows: Rows, directions: Tensor, moment: Moment) -> Tensor:
    """A root of the second moment of the directions' responses on the clients' data.

    Its inputs are taken to be as large as those of the questions.
    """
    size = 1 / rows.width if isinstance(rows, OneHot) else float(rows.float().square().mean())
    energies, turn = torch.linalg.eigh(size * moment.between(directions))
    root: Tensor = (turn * energies.clamp_min(0).sqrt()).T
    return root
