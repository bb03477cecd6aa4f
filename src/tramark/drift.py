"""What the clients' updates reveal.

The update of a linear layer, ΔW, is a sum of outer products of output gradients with the layer's inputs on a client's
data. So Σ ΔWᵀΔW tells in which directions those inputs lie: up to scale, it stands in for their second moment C, which
the server could not know otherwise. It is estimated as updates stream by, one round averaged into the next with weight
½. It is kept as a sketch A of some hundred rows with C ≈ AᵀA, which costs little more than reading the updates, or as
the matrix itself in layers with no more inputs than that.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import torch
from torch import Tensor

from tramark.weights import Layout, Slot


class Moment(Protocol):
    """An estimate of C, with trace C = in."""

    def solve(self, right: Tensor, ridge: float) -> Tensor:
        """(C + ridge·I)⁻¹ right, for an in × N matrix."""


@dataclass(frozen=True, eq=False)
class DenseMoment:
    """C as a matrix."""

    matrix: Tensor

    def solve(self, right: Tensor, ridge: float) -> Tensor:
        damped = self.matrix.clone()
        damped.diagonal().add_(ridge)
        return torch.cholesky_solve(right, torch.linalg.cholesky(damped))


@dataclass(frozen=True, eq=False)
class SketchedMoment:
    """C = AᵀA for a few rows A, by Woodbury's identity."""

    rows: Tensor

    def solve(self, right: Tensor, ridge: float) -> Tensor:
        gram = self._gram.clone()
        gram.diagonal().add_(ridge)
        inner = torch.cholesky_solve(self.rows @ right, torch.linalg.cholesky(gram))
        return (right - self.rows.T @ inner) / ridge

    @cached_property
    def _gram(self) -> Tensor:
        """A Aᵀ; of the upper half, which a factorisation does not read, only what is next to the lower one."""
        count = len(self.rows)
        gram = self.rows.new_zeros(count, count)
        for start in range(0, count, 128):
            stop = start + 128
            gram[start:stop, :stop] = self.rows[start:stop] @ self.rows[:stop].T
        return gram


class Drift:
    """A streaming estimate of which inputs some layers see, from the clients' updates alone.

    Parameters
    ----------
    layout : the model's layout.
    layers : names of the layers' weight tensors.
    device : where the matrices live.
    sketch : rows of the sketch; layers with no more inputs than that keep a matrix.
    """

    def __init__(
        self,
        layout: Layout,
        layers: tuple[str, ...],
        *,
        device: torch.device | str = "cpu",
        sketch: int = 1024,
    ) -> None:
        self.slots: dict[str, Slot] = {layer: layout.slots[layer] for layer in layers}
        self.device = torch.device(device)
        self.sketch = sketch
        self.rounds = 0
        self._seen = 0
        self._average: dict[str, Tensor] = {}
        self._sum: dict[str, Tensor] = {}

    @property
    def layers(self) -> Collection[str]:
        """The names of the layers' weight tensors."""
        return self.slots.keys()

    def observe(self, updates: Mapping[str, Tensor]) -> None:
        """Fold in one client's updates of the layers."""
        for number, (layer, update) in enumerate((layer, updates[layer]) for layer in self.slots):
            update = update.view(len(update), -1).to(self.device, torch.float32)
            if layer not in self._sum:
                self._sum[layer] = torch.zeros(self.sketch, update.shape[1], device=self.device)
            # The rows of all updates go round and round the sketch's, each with a random sign: its square is that of
            # the updates in expectation, and exactly so while there are no more of them than rows.
            signs = self._signs(len(update), hash((self.rounds, self._seen, number)) & (2**62 - 1))
            start = (self._seen * len(update)) % self.sketch
            for cut in range(-start, len(update), self.sketch):
                some = slice(max(cut, 0), cut + self.sketch)
                rows = slice(some.start - cut, some.start - cut + len(update[some]))
                self._sum[layer][rows].addcmul_(update[some], signs[some, None])
        self._seen += 1

    def settle(self) -> None:
        """End a round: average what was seen in it into the estimate."""
        for layer, total in self._sum.items():
            inputs, energy = total.shape[1], total.square().sum()
            if energy <= 0:
                continue
            # A sketch is a square root of C, and so are its scale and its averaging weight. A random sign per row
            # keeps the old rows and the new ones from adding up coherently.
            fresh = total * (inputs / energy).sqrt()
            old = self._average.get(layer)
            if inputs <= self.sketch:
                fresh = fresh.T @ fresh
                fresh = fresh if old is None else (old + fresh) / 2
            elif old is not None:
                fresh = (old * self._signs(len(old), self.rounds)[:, None] + fresh) / 2**0.5
            self._average[layer] = fresh
        self.forget()
        self.rounds += 1

    def forget(self) -> None:
        """Drop what was seen since the last round ended."""
        self._sum = {}
        self._seen = 0

    def moment(self, layer: str) -> Moment:
        """The estimate for a layer; before any update has been seen, all directions count alike."""
        inputs = self.slots[layer].shape[1:].numel()
        if layer not in self._average:
            return DenseMoment(torch.eye(inputs, device=self.device))
        if inputs <= self.sketch:
            return DenseMoment(self._average[layer])
        return SketchedMoment(self._average[layer])

    def state_dict(self) -> dict[str, Tensor]:
        """The settled estimate (between rounds there is nothing else)."""
        state = {f"moment.{layer}": tensor for layer, tensor in self._average.items()}
        return state | {"rounds": torch.tensor(self.rounds)}

    def load_state_dict(self, state: dict[str, Tensor]) -> Self:
        for layer, slot in self.slots.items():
            inputs = slot.shape[1:].numel()
            kept, wanted = state.get(f"moment.{layer}"), (min(inputs, self.sketch), inputs)
            if kept is not None and tuple(kept.shape) != wanted:
                raise ValueError(f"the drift of {layer} is kept as {tuple(kept.shape)} numbers instead of {wanted}")
        self.rounds = int(state["rounds"])
        self._average = {
            name.removeprefix("moment."): tensor.to(self.device)
            for name, tensor in state.items()
            if name.startswith("moment.")
        }
        return self

    def _signs(self, count: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randint(2, (count,), generator=generator) * 2 - 1).to(self.device)
