"""What methods with helping clients share: bits that are read from weights, and samples appended to batches.

A carrier γ is a vector read from a model's weights. A client's key is a string b of ±1 and a matrix M ~ N(0, 1), both
drawn from the federation's secret; the bits that a model bears are the signs of γM, and training pulls them to b by
the hinge Σ relu(−b·(γM)). Whatever a suspect's γ, b is uniform and independent of it unless the client put it there:
its number of right bits is Binomial(m, ½), which makes the bounds exact.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError, SuspectError, one_line
from tramark.evidence.statistics import p_values
from tramark.fleet.layout import Layout, State
from tramark.fleet.scratch import device_of
from tramark.keys import streams
from tramark.suspects.base import Suspect

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Carrier(Protocol):
    """Where among a model's weights bits are."""

    @property
    def size(self) -> int:
        """How many numbers it has."""

    def take(self, weights: State) -> Tensor:
        """These numbers as a vector, through which gradients flow."""


@dataclass(frozen=True)
class Tensors:
    """Whole tensors one after another, each averaged over its outputs first if they are `averaged`."""

    names: tuple[str, ...]
    size: int
    averaged: bool = False

    @classmethod
    def of(cls, model: nn.Module, names: Sequence[str], *, averaged: bool = False) -> Self:
        weights = [model.get_parameter(name) for name in names]
        size = sum(weight[0].numel() if averaged else weight.numel() for weight in weights)
        return cls(tuple(names), size, averaged)

    def take(self, weights: State) -> Tensor:
        tensors = [weights[name] for name in self.names]
        return torch.cat([(tensor.mean(0) if self.averaged else tensor).flatten() for tensor in tensors])


@dataclass(frozen=True, eq=False)
class Picked:
    """Single weights, by their places in each of some tensors."""

    parts: tuple[tuple[str, Tensor], ...]

    @classmethod
    def of(cls, layout: Layout, names: Sequence[str], places: Tensor) -> Self:
        """Those at ascending places of the vector that these tensors make, one after another."""
        parts, start = [], 0
        for name in names:
            stop = start + layout.slots[name].shape.numel()
            first, last = torch.searchsorted(places, torch.tensor([start, stop])).tolist()
            if first < last:
                parts.append((name, places[first:last] - start))
            start = stop
        return cls(tuple(parts))

    @property
    def size(self) -> int:
        return sum(len(places) for _, places in self.parts)

    def take(self, weights: State) -> Tensor:
        tensors = [(weights[name], places) for name, places in self.parts]
        return torch.cat([tensor.flatten()[places.to(tensor.device)] for tensor, places in tensors])


def public_carrier(model: nn.Module, last: int = 0) -> Tensors:
    """FedIPR's: the scales of all norm layers; of a net without, all convolutions' mean kernels over their outputs; of
    a net with neither, the same of all hidden linear layers. Of all these, the `last` ones, if that is given.

    >>> public_carrier(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2)))
    Tensors(names=('1.weight',), size=8, averaged=False)
    >>> public_carrier(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)))
    Tensors(names=('0.weight',), size=16, averaged=True)
    """

    def names(*kinds: type[nn.Module]) -> list[str]:
        found = [(name, getattr(module, "weight", None)) for name, module in model.named_modules()
                 if isinstance(module, kinds)]  # fmt: skip
        return [f"{name}.weight" for name, weight in found if weight is not None and weight.requires_grad]

    if scales := names(*NORMS):
        return Tensors.of(model, scales[-last:])
    if kernels := names(nn.Conv1d, nn.Conv2d, nn.Conv3d) or names(nn.Linear)[:-1]:
        return Tensors.of(model, kernels[-last:], averaged=True)
    raise SettingError(f"{type(model).__name__} has no norm layer, convolution or hidden linear layer to carry bits")


@dataclass(frozen=True, eq=False)
class BitKey:
    """One client's bits, ±1, and the matrix through which they are read.

    >>> key = BitKey.draw(b"s" * 32, "alice", size=64, bits=8)
    >>> key.matches(key.matrix @ key.bits), key.matches(-key.matrix @ key.bits)
    (8, 0)
    """

    bits: Tensor
    matrix: Tensor

    @classmethod
    def draw(cls, secret: bytes, *context: streams.Context, size: int, bits: int) -> Self:
        """A key for a carrier of this size, the same whenever it is drawn."""
        signs = streams.integers(secret, "bits", *context, count=bits, below=2)
        return cls(signs.float() * 2 - 1, normal(secret, "matrix", *context, shape=(size, bits)))

    @classmethod
    def draw_apart(cls, secret: bytes, *context: streams.Context, sizes: Sequence[int], bits: int) -> Self:
        """A key with a matrix for each part of a carrier, and bits in proportion to the parts' sizes, rounded down.

        >>> BitKey.draw_apart(b"s" * 32, "alice", sizes=[384, 256, 256], bits=40).bits.shape
        torch.Size([39])
        """
        shares = [bits * size // sum(sizes) for size in sizes]
        keys = [
            cls.draw(secret, *context, part, size=size, bits=share)
            for part, (size, share) in enumerate(zip(sizes, shares, strict=True))
        ]
        return cls(torch.cat([key.bits for key in keys]), torch.block_diag(*(key.matrix for key in keys)))

    def to(self, device: torch.device) -> Self:
        """The same key, where a model is."""
        return type(self)(self.bits.to(device), self.matrix.to(device))

    def project(self, values: Tensor) -> Tensor:
        """γM, one number a bit: its sign is the bit that the carrier bears."""
        return values @ self.matrix.to(values)

    def hinge(self, values: Tensor) -> Tensor:
        """Σ relu(−b·(γM)): nothing once all bits are right."""
        projected = self.project(values)
        return F.relu(-self.bits.to(projected) * projected).sum()

    def cross_entropy(self, values: Tensor) -> Tensor:
        """The mean binary cross-entropy between the bits and γM as their logits."""
        projected = self.project(values)
        return F.binary_cross_entropy_with_logits(projected, (self.bits.to(projected) + 1) / 2)

    @torch.no_grad()
    def matches(self, values: Tensor) -> int:
        """How many bits are right. A zero is no bit."""
        projected = self.project(values)
        return int((projected * self.bits.to(projected) > 0).sum())


def normal(secret: bytes, *context: streams.Context, shape: tuple[int, ...]) -> Tensor:
    """Independent draws from N(0, 1) that only the holder of the secret can repeat."""
    # The fractions are multiples of 2⁻²⁴: half a step more keeps them off both ends, where the quantile is infinite.
    uniform = streams.fractions(secret, *context, shape=shape).double() + 2**-25
    drawn: Tensor = torch.special.ndtri(uniform)
    return drawn.float()


def needed(bits: int, claims: int, false_claim: float) -> int:
    """The least number of right bits that so many clients' claims can rest on, all of them wrong by chance with
    probability `false_claim` at most; an error if there are not enough bits for any.

    >>> needed(40, 10, 1e-6), needed(256, 10, 1e-6)
    (36, 170)
    """
    if not 0 < false_claim < 1:
        raise SettingError(f"a false-claim bound of {false_claim}: it is a probability, such as 1e-6")
    enough = np.flatnonzero(p_values(bits, 2) * claims <= false_claim)
    if not len(enough):
        least = math.ceil(math.log2(claims / false_claim))
        raise SettingError(
            f"{bits} bits prove nothing to within {false_claim} for {claims} clients: take {least} at least"
        )
    return int(enough[0])


def read(model: nn.Module, carrier: Carrier) -> Tensor:
    """A model's carrier, through which gradients flow."""
    return carrier.take(dict(model.named_parameters()))


def read_suspect(suspect: nn.Module | Suspect, carrier: Carrier) -> Tensor:
    """A suspect's carrier, in memory."""
    if not isinstance(suspect, nn.Module):
        raise SuspectError(f"bits are read from weights: give the module itself, not a {type(suspect).__name__}")
    try:
        values = read(suspect, carrier).detach().cpu()
    except (KeyError, IndexError, RuntimeError) as error:
        raise SuspectError(f"the suspect is not of the federation's architecture: {one_line(error)}") from None
    if len(values) != carrier.size:
        raise SuspectError(
            f"the suspect is not of the federation's architecture: {len(values)} of its numbers carry bits, "
            f"not {carrier.size}"
        )
    return values


Loss = Callable[[nn.Module], Tensor]


@contextmanager
def appended(
    model: nn.Module, inputs: Tensor, labels: Tensor, count: Callable[[int], int], generator: torch.Generator
) -> Iterator[Loss]:
    """A loss for `practice(model, extra=…)` that acts as if some of these samples were appended to every batch.

    `count` says how many for a batch of B; they take turns, in a new random order each time. The loss is count/B times
    their mean cross-entropy: with the batch's own, that is the mean over all B + count samples, times 1 + count/B.
    Batch norms treat them by the running statistics: a few odd samples have none of their own to speak of.
    """
    device = device_of(model)
    inputs, labels = inputs.to(device), labels.to(device)
    batch, queue = [0], torch.empty(0, dtype=torch.int64)

    def note_size(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        batch[0] = len(args[0])

    def extra(model: nn.Module) -> Tensor:
        nonlocal queue
        size = batch[0]
        some = min(count(size), len(inputs))
        if len(queue) < some:
            queue = torch.cat([queue, torch.randperm(len(inputs), generator=generator)])
        turn, queue = queue[:some].to(device), queue[some:]
        with _norms_at_rest(model):
            return some / size * F.cross_entropy(model(inputs[turn]), labels[turn])

    # Practice does not say how large its batches are, so they are counted on their way in.
    handle = model.register_forward_pre_hook(note_size)
    try:
        yield extra
    finally:
        handle.remove()


@contextmanager
def _norms_at_rest(model: nn.Module) -> Iterator[None]:
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.training]
    for norm in norms:
        norm.training = False
    try:
        yield
    finally:
        for norm in norms:
            norm.training = True
