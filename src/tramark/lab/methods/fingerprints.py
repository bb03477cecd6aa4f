"""FedTracker's fingerprints: where they lie, bits that are far apart, and how they are pressed into weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tramark.errors import SettingError
from tramark.fleet.layout import Layout, Slot
from tramark.fleet.region import Places
from tramark.lab.methods.bits import normal
from tramark.marks.layers import linear_layers


@dataclass(frozen=True, eq=False)
class Carrier:
    """The numbers w that bear fingerprints: the mean over the outputs of some layers' weights.

    A norm layer's scales count as one output. Moving w moves all outputs alike. With `rows`, the mean is over the
    inputs instead: one number for each output.
    """

    names: tuple[str, ...]
    """The tensors, in the order in which they lie in the flat vector."""
    slots: tuple[Slot, ...]
    outputs: tuple[int, ...]
    rows: bool = False

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, bits: int) -> Self:
        """The first of norms, convolutions, hidden linear and all linear layers that have two numbers for each bit.

        The fewer numbers there are, the more a fingerprint bends them; if no kind has twice as many as bits, the first
        that has as many must do. Layers are taken from the last backwards, of norms three at least.
        """
        modules = {name: m for name, m in model.named_modules() if _weight(name) in layout.slots}
        norms = [n for n, m in modules.items() if isinstance(m, (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm))]
        convolutions = [n for n, m in modules.items() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d))]
        linear = linear_layers(model)
        found: list[Self] = []
        for layers, least in ((norms[::-1], 3), (convolutions[::-1], 1), (linear[:-1], 1), (linear, 1)):
            taken: dict[int, tuple[str, Slot, int]] = {}
            numbers = 0
            for name in map(_weight, layers):
                slot = layout.slots[name]
                if slot.start not in taken and (numbers < 2 * bits or len(taken) < least):
                    outputs = 1 if layers[0] in norms else slot.shape[0]
                    taken[slot.start] = name, slot, outputs
                    numbers += slot.shape.numel() // outputs
            if taken:
                names, slots, counts = zip(*(taken[start] for start in sorted(taken)), strict=True)
                found.append(cls(names, slots, counts))
        for enough in (2 * bits, bits):
            for carrier in found:
                if carrier.size >= enough:
                    return carrier
        raise SettingError(
            f"{type(model).__name__} has no layers of one kind with a number for each of {bits} bits: "
            f"ask for {max((carrier.size for carrier in found), default=0)} bits at most"
        )

    @classmethod
    def of_layer(cls, layout: Layout, layer: str) -> Self:
        """The rows of one layer: a number for each of its outputs."""
        if _weight(layer) not in layout.slots:
            raise SettingError(f"no layer {layer!r} to carry fingerprints: say carrier=… with the name of one")
        slot = layout.slots[_weight(layer)]
        return cls((_weight(layer),), (slot,), (slot.shape[0],), rows=True)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        if self.rows:
            return list(self.outputs)
        return [slot.shape.numel() // out for slot, out in zip(self.slots, self.outputs, strict=True)]

    @property
    def places(self) -> Places:
        return Places(torch.cat([torch.arange(slot.start, slot.stop) for slot in self.slots]))

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        """w, from the tensors that are averaged."""
        return torch.cat(
            [t.reshape(out, -1).mean(int(self.rows)) for t, out in zip(tensors, self.outputs, strict=True)]
        )

    def spread(self, change: Tensor) -> Tensor:
        """Changes of w (… × numbers) as changes of all places (… × places)."""
        pieces = change.split(self._sizes, dim=-1)
        if self.rows:
            inputs = [slot.shape.numel() // out for slot, out in zip(self.slots, self.outputs, strict=True)]
            spread = (piece.repeat_interleave(n, dim=-1) for piece, n in zip(pieces, inputs, strict=True))
            return torch.cat(list(spread), dim=-1)
        return torch.cat(
            [torch.cat([piece] * out, dim=-1) for piece, out in zip(pieces, self.outputs, strict=True)], dim=-1
        )


def _weight(layer: str) -> str:
    """The name of a layer's weights; the layer may be the whole model."""
    return f"{layer}.weight".removeprefix(".")


def far_apart(
    clients: int,
    bits: int,
    *,
    generator: torch.Generator,
    population: int = 10,
    generations: int = 50,
    mutation: float = 0.05,
    selection: float = 0.5,
) -> Tensor:
    """Bits ±1 (clients × bits) of which no two rows are near each other, by a genetic search.

    An individual is everybody's bits. In each generation the fittest live on, and the places of the others are taken by
    children: the first rows of one of the fittest, the other rows of another, and some bits flipped. The fitter is the
    one with the larger smallest Hamming distance or, that being equal, with fewer pairs so near.

    >>> rows = far_apart(4, 32, generator=torch.Generator().manual_seed(0))
    >>> rows.shape, int((rows[0] != rows[1]).sum()) > 12
    (torch.Size([4, 32]), True)
    """
    alive = torch.randint(2, (population, clients, bits), generator=generator) * 2.0 - 1
    kept = max(1, round(selection * population))
    for _ in range(generations):
        alive = alive[_fitness(alive).argsort(descending=True, stable=True)[:kept]]
        parents = torch.randint(kept, (2, population - kept), generator=generator)
        cut = torch.randint(clients + 1, (population - kept, 1, 1), generator=generator)
        children = torch.where(torch.arange(clients)[:, None] < cut, alive[parents[0]], alive[parents[1]])
        flipped = torch.rand(children.shape, generator=generator) < mutation
        alive = torch.cat([alive, torch.where(flipped, -children, children)])
    return alive[_fitness(alive).argmax()]


def _fitness(population: Tensor) -> Tensor:
    """How far apart the rows of each individual are."""
    bits = population.shape[-1]
    # How many more bits two rows have in common than not; a row with itself counts as an opposite.
    same = torch.eye(population.shape[-2], dtype=torch.bool)
    agreement = (population @ population.mT).masked_fill(same, -bits)
    most = agreement.amax((1, 2))
    crowd = (agreement == most[:, None, None]).double().mean((1, 2))
    # One less bit in common is worth more than any number of pairs that have so many: the crowd counts at most one.
    return -most.double() - crowd


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Everybody's bits and matrices: n × bits, and n × bits × numbers, which all lie in memory."""

    bits: Tensor
    keys: Tensor
    margin: float = 0.5

    @classmethod
    def make(cls, secret: bytes, clients: Sequence[str], bits: Tensor, numbers: int, margin: float) -> Self:
        shape = (bits.shape[1], numbers)
        return cls(bits, torch.stack([normal(secret, "fingerprint", c, shape=shape) for c in clients]), margin)

    def similarities(self, numbers: Tensor) -> Tensor:
        """How alike models (models × numbers) are to each client's: models × clients, at most one."""
        return self.read(numbers).clamp(max=self.margin).mean(-1) / self.margin

    def read(self, numbers: Tensor) -> Tensor:
        """Each client's bits as models (models × numbers) bear them, positive if right: models × clients × bits."""
        return torch.einsum("cbk,mk->mcb", self.keys, numbers) * self.bits

    def press(self, numbers: Tensor, *, rate: float, steps: int, similarity: float, shortened: bool = True) -> Tensor:
        """What is to be added to w (numbers) for each client's model: n × numbers.

        If steps are `shortened`, none is longer than Polyak's.
        """
        clients = len(self.bits)
        change = torch.zeros(clients, len(numbers))
        own, same = torch.arange(clients), torch.eye(clients, dtype=torch.bool)
        for _ in range(steps):
            said = self.read(numbers + change)
            alike = said.clamp(max=self.margin).mean(-1) / self.margin
            best = alike.masked_fill(same, -math.inf).amax(1)
            short = (alike.diagonal() < similarity) | (alike.diagonal() <= best)
            if not short.any():
                break
            lacking = self.margin - said[own, own]
            downhill = torch.einsum("cb,cbk->ck", self.bits * (lacking > 0), self.keys)
            loss, slope = lacking.clamp_min(0).sum(1), downhill.square().sum(1)
            polyak = loss / slope.clamp_min(1e-12) if shortened else torch.full_like(loss, rate)
            length = polyak.clamp(max=rate) * short
            change += length[:, None] * downhill
        return change
