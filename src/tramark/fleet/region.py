"""Where marks live.

A region is k·d of a model's d degrees of freedom. It takes a mark out of a flat vector of weights and puts one
in, and changes nothing else: in the paper's terms, M_w ⊙ θ is what it takes and M_m ⊙ θ what it
leaves. `Places` is the paper's region, a set of indices. `Subspace` is a set of directions in the input space of
linear layers: there M_w is the projector Q Qᵀ and M_m its complement.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tramark.errors import SettingError
from tramark.fleet.layout import Layout, Slot


class Region(Protocol):
    """What all regions can do."""

    @property
    def size(self) -> int:
        """How many numbers a mark has: k·d."""

    def take(self, weights: Tensor) -> Tensor:
        """The mark inside a flat vector of weights."""

    def put(self, weights: Tensor, mark: Tensor) -> None:
        """Write a mark into a flat vector of weights, in place; nothing outside the region changes."""

    def put_in(self, slot: Slot, tensor: Tensor, mark: Tensor, own: Tensor) -> None:
        """Write the part of a mark that lies in one tensor into that tensor, in place; `own` is what it held before."""

    def absorb(self, slot: Slot, mark: Tensor, update: Tensor) -> None:
        """Add a client's update of one tensor to its mark, in place, if marks of this kind are kept."""

    def tensors(self, layout: Layout) -> set[str]:
        """The names of the tensors that a mark can change."""

    def state_dict(self) -> dict[str, Tensor]:
        """The region's tensors, for a checkpoint."""


@dataclass(frozen=True, eq=False)
class Places:
    """The paper's region: a set of weights, by their places in the flat vector (ascending).

    >>> region, weights = Places(torch.tensor([0, 2])), torch.tensor([1.0, 2.0, 3.0])
    >>> region.put(weights, torch.tensor([7.0, 9.0])); weights
    tensor([7., 2., 9.])
    """

    indices: Tensor

    @property
    def size(self) -> int:
        return len(self.indices)

    def take(self, weights: Tensor) -> Tensor:
        return weights[self.indices]

    def put(self, weights: Tensor, mark: Tensor) -> None:
        weights[self.indices] = mark.to(weights.dtype)

    def put_in(self, slot: Slot, tensor: Tensor, mark: Tensor, own: Tensor) -> None:
        some, places = self.inside(slot)
        tensor.view(-1)[places] = mark[some].to(tensor.dtype)

    def absorb(self, slot: Slot, mark: Tensor, update: Tensor) -> None:
        inside, places = self.inside(slot)
        mark[inside] += update.view(-1)[places]

    def inside(self, slot: Slot) -> tuple[slice, Tensor]:
        """Which part of a mark lies in a tensor, and at which of its places."""
        first, last = torch.searchsorted(self.indices, torch.tensor([slot.start, slot.stop])).tolist()
        return slice(first, last), self.indices[first:last] - slot.start

    def tensors(self, layout: Layout) -> set[str]:
        return {name for name, slot in layout.slots.items() if len(self.inside(slot)[1])}

    def state_dict(self) -> dict[str, Tensor]:
        return {"indices": self.indices}


@dataclass(frozen=True, eq=False)
class Directions:
    """The part of a subspace that lies in one layer: orthonormal directions of its input space, in × q."""

    slot: Slot
    basis: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.slot.sides[0], self.basis.shape[1]

    def matrix(self, weights: Tensor) -> Tensor:
        """The layer's weights as an out × in matrix (a view)."""
        return self.slot.matrix(self.slot.of(weights))


@dataclass(frozen=True, eq=False)
class Subspace:
    """Directions in the input spaces of one or more layers; a mark is what the layers do to those directions.

    For a layer's matrix W and its directions Q, the mark is W Q, and putting a mark T writes W + (T − W Q) Qᵀ.
    """

    parts: tuple[Directions, ...]

    @property
    def size(self) -> int:
        return sum(out * rank for out, rank in (part.shape for part in self.parts))

    def take(self, weights: Tensor) -> Tensor:
        return torch.cat([(part.matrix(weights) @ part.basis).flatten() for part in self.parts])

    def put(self, weights: Tensor, mark: Tensor) -> None:
        for part, piece in zip(self.parts, self.split(mark), strict=True):
            matrix = part.matrix(weights)
            matrix += (piece - matrix @ part.basis) @ part.basis.T

    def put_in(self, slot: Slot, tensor: Tensor, mark: Tensor, own: Tensor) -> None:
        for part, piece in zip(self.parts, self.split(mark - own), strict=True):
            if part.slot == slot:
                slot.matrix(tensor).addmm_(piece, part.basis.T)

    def absorb(self, slot: Slot, mark: Tensor, update: Tensor) -> None:
        """Nothing: these marks are written anew each round."""

    def split(self, mark: Tensor) -> list[Tensor]:
        """A mark (or a matrix of marks) layer by layer: … × out × q."""
        sizes = [out * rank for out, rank in (part.shape for part in self.parts)]
        pieces = mark.split(sizes, dim=-1)
        return [piece.unflatten(-1, part.shape) for part, piece in zip(self.parts, pieces, strict=True)]

    def tensors(self, layout: Layout) -> set[str]:
        starts = {part.slot.start for part in self.parts}
        return {name for name, slot in layout.slots.items() if slot.start in starts}

    def state_dict(self) -> dict[str, Tensor]:
        return {f"basis.{i}": part.basis for i, part in enumerate(self.parts)} | {
            f"start.{i}": torch.tensor(part.slot.start) for i, part in enumerate(self.parts)
        }


def load_region(state: dict[str, Tensor], layout: Layout) -> Region:
    """The region that `state_dict` described."""
    if "indices" in state:
        return Places(state["indices"])
    by_start = {slot.start: slot for slot in layout.slots.values()}
    count = sum(name.startswith("basis.") for name in state)
    return Subspace(tuple(Directions(by_start[int(state[f"start.{i}"])], state[f"basis.{i}"]) for i in range(count)))


def smallest_weights(weights: Tensor, layout: Layout, ratio: float, *, per_tensor: bool = False) -> Places:
    """The ⌊ratio·d⌋ weights of smallest magnitude: over the whole model (the paper's text), or of each tensor.

    Ties go to the earlier place, so that the region is the same on every machine. Per tensor, the rest is rounded down,
    as in the authors' code: numel − ⌊(1 − ratio)·numel⌋ of each, so that every tensor has one at least.
    """
    if not 0 < ratio < 1:
        raise SettingError(f"the region's ratio k must lie between 0 and 1, not {ratio}")
    if per_tensor:
        slots = [(slot, weights[slot.start : slot.stop]) for slot in layout.tensors.values()]
        counts = [len(own) - int((1 - ratio) * len(own)) for _, own in slots]
        own = (slot.start + _smallest(own, count) for (slot, own), count in zip(slots, counts, strict=True))
        return Places(torch.cat(list(own)))
    total = int(ratio * layout.size + 1e-9)
    if total < 1:
        raise SettingError(
            f"a ratio of {ratio} of {layout.size} weights leaves no place for a mark: take {1 / layout.size:.2g}"
        )
    return Places(_smallest(weights, total))


def _smallest(weights: Tensor, count: int) -> Tensor:
    """Ascending indices of the `count` smallest magnitudes, ties to the lower index."""
    if count == 0:
        return torch.empty(0, dtype=torch.int64)
    magnitude = weights.abs()
    limit = magnitude.kthvalue(count).values
    below = torch.nonzero(magnitude < limit).flatten()
    ties = torch.nonzero(magnitude == limit).flatten()[: count - len(below)]
    return torch.cat([below, ties]).sort().values
