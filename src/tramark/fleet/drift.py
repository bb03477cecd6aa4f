"""What the clients' updates reveal.

The update of a linear layer, ΔW, is a sum of outer products of output gradients with the layer's inputs on a client's
data. So Σ ΔWᵀΔW tells in which directions those inputs lie: up to scale, it stands in for their second moment C, which
the server could not know otherwise. It is estimated as updates stream by, one round averaged into the next with weight
½. Every client's update of a layer counts with unit energy, however large it is, so that one client in ten moves the
estimate by a tenth of its energy and no more. An update that is far larger than the last round's were counts less.

The estimate is kept as a sketch A of some hundred rows with C ≈ AᵀA, which costs little more than reading the updates,
or, in layers that are not too wide for it, as the matrix itself, which is nearer to the truth.

By the same token Σ ΔWΔWᵀ tells in which directions the gradients at the layer's output lie, G: which of its changes the
task feels, and which gradients would run back through them. Few directions hold most of it, so a sketch of some of the
updates' columns is enough.
"""

import math
from collections.abc import Collection, Mapping
from typing import Self

import torch
from torch import Tensor

from tramark.errors import CheckpointError
from tramark.fleet.layout import Layout, Slot, finite
from tramark.fleet.moments import DenseMoment, EvenMoment, Moment, Pull, SketchedMoment
from tramark.fleet.usual import lower_median

FAR = 3.0
"""An update of a layer that is more than so many times larger than the median of the last round's counts less: in
proportion to its norm."""


TINY = 1e-30


class Drift:
    """A streaming estimate of which inputs some layers see, from the clients' updates alone.

    Parameters
    ----------
    layout : the model's layout.
    layers : names of the layers' weight tensors.
    device : where the matrices live.
    sketch : rows of the sketch.
    dense : layers with no more inputs than that keep a matrix.
    columns : columns of all clients' updates that are kept in a round to estimate G; layers with no more inputs and
        outputs than that keep a matrix.
    """

    def __init__(
        self,
        layout: Layout,
        layers: tuple[str, ...],
        *,
        device: torch.device | str = "cpu",
        sketch: int = 1024,
        dense: int = 2048,
        columns: int = 256,
    ) -> None:
        self.slots: dict[str, Slot] = {layer: layout.slots[layer] for layer in layers}
        self.device = torch.device(device)
        self.sketch = sketch
        self.dense = dense
        self.columns = columns
        self.rounds = 0
        self._seen = 0
        self._sizes: dict[str, list[float]] = {}
        # By "moment.", "pull." or "size." (the median norm of the last round's updates) and the layer's name.
        self._average: dict[str, Tensor] = {}
        self._sum: dict[str, Tensor] = {}

    @property
    def layers(self) -> Collection[str]:
        """The names of the layers' weight tensors."""
        return self.slots.keys()

    def keep(self, layers: Collection[str]) -> None:
        """Observe these layers alone from now on."""
        self.slots = {layer: slot for layer, slot in self.slots.items() if layer in layers}
        self._average = {name: kept for name, kept in self._average.items() if name.partition(".")[2] in layers}

    def observe(self, updates: Mapping[str, Tensor]) -> None:
        """Fold in one client's updates of the layers."""
        for number, (layer, slot) in enumerate(self.slots.items()):
            update = slot.matrix(updates[layer]).to(self.device, torch.float32)
            size = _size(update)
            if not 0 < size < math.inf:
                continue
            self._sizes.setdefault(layer, []).append(size)
            usual = float(self._average.get(f"size.{layer}", math.inf))
            share = min(1.0, FAR * usual / size)
            update = update / size
            # A matrix is made of as many rows as it has, so that next to nothing of it is lost.
            rows = max(self.sketch, update.shape[1]) if self._dense(layer) else self.sketch
            self._fold(f"moment.{layer}", update, rows, share, start=self._seen * len(update), seed=2 * number)
            if self._small(layer):
                name, own = f"pull.{layer}", share**2 * (update @ update.T)
                self._sum[name] = self._sum[name] + own if name in self._sum else own
                continue
            width = min(self.columns, update.shape[1])
            if not slot.embedding:
                # Another block of columns for each client. Most tokens are rare, so for embeddings a block won't do.
                first = width * ((self.rounds + self._seen) % -(-update.shape[1] // width))
                # All of an update's energy may be in one block: it still counts no more than others' blocks.
                update = update[:, first : first + width]
                update = update / max(_size(update), TINY)
            self._fold(f"pull.{layer}", update.T, width, share, seed=2 * number + 1)
        self._seen += 1

    def _fold(self, name: str, rows: Tensor, count: int, share: float, *, start: int = 0, seed: int) -> None:
        """Add rows, scaled by `share`, into a sketch of so many.

        They are added in turn, each with a random sign: the sketch's square is that of the rows in expectation, exactly
        so while there are no more rows than the sketch has.
        """
        if name not in self._sum:
            self._sum[name] = torch.zeros(count, rows.shape[1], device=self.device)
        signs = self._signs(len(rows), hash((self.rounds, self._seen, seed)) & (2**62 - 1))
        for cut in range(-(start % count), len(rows), count):
            some = slice(max(cut, 0), cut + count)
            into = slice(some.start - cut, some.start - cut + len(rows[some]))
            self._sum[name][into].addcmul_(rows[some], signs[some, None], value=share)

    def settle(self) -> None:
        """End a round: average what was seen in it into the estimate. A shallow copy made before keeps the old one."""
        self._average = dict(self._average)
        for name, total in self._sum.items():
            kind, _, layer = name.partition(".")
            width, old = total.shape[1], self._average.get(name)
            dense = self._dense(layer) if kind == "moment" else self._small(layer)
            if dense and kind == "moment":
                total = total.T @ total
            energy = total.trace() if dense else torch.linalg.vector_norm(total).square()
            if energy <= 0:
                continue
            # A sketch is a square root of what it stands for, and so are its scale and its averaging weight. A random
            # sign per row keeps the old rows and the new ones from adding up coherently.
            weight = 1.0 if old is None else 0.5
            total.mul_(weight * width / energy if dense else (weight * width / energy).sqrt())
            if old is not None and dense:
                total.add_(old, alpha=weight)
            elif old is not None:
                total.addcmul_(old, self._signs(len(old), self.rounds)[:, None], value=weight**0.5)
            self._average[name] = total
        for layer, sizes in self._sizes.items():
            self._average[f"size.{layer}"] = torch.tensor(lower_median(sizes), dtype=torch.float64)
        self.forget()
        self.rounds += 1

    def forget(self) -> None:
        """Drop what was seen since the last round ended."""
        self._sum = {}
        self._sizes = {}
        self._seen = 0

    def moment(self, layer: str) -> Moment:
        """The estimate of C for a layer; before any update has been seen, all directions count alike."""
        kept = self._average.get(f"moment.{layer}")
        if kept is None:
            return EvenMoment()
        return DenseMoment(kept) if self._dense(layer) else SketchedMoment(kept)

    def pull(self, layer: str, ridge: float, *, rank: int = 32) -> Pull:
        """The estimate of G for a layer; before any update has been seen, all directions count alike."""
        kept = self._average.get(f"pull.{layer}")
        out = self.slots[layer].sides[0]
        if kept is None:
            return Pull(torch.zeros(out, 0, device=self.device), torch.zeros(0, device=self.device), ridge)
        small = self._small(layer)
        # A few steps of subspace iteration find the directions that matter: they stand out.
        generator = torch.Generator().manual_seed(0)
        found = torch.randn(out, min(rank, *kept.shape), generator=generator).to(self.device)
        for _ in range(4):
            basis = torch.linalg.qr(found).Q
            found = kept @ basis if small else kept.T @ (kept @ basis)
        energies, turn = torch.linalg.eigh(basis.T @ found)
        return Pull(basis @ turn.flip(1), energies.flip(0).clamp_min(0), ridge)

    @property
    def finite(self) -> bool:
        """Whether the estimates have neither NaN nor infinite values."""
        return all(map(finite, self._average.values()))

    def _dense(self, layer: str) -> bool:
        """Whether a layer is not too wide for its C to be kept as a matrix."""
        return self.slots[layer].sides[1] <= self.dense

    def _small(self, layer: str) -> bool:
        """Whether a layer is so small that all columns are taken, and the matrix itself is kept."""
        return max(self.slots[layer].sides) <= self.columns

    def state_dict(self) -> dict[str, Tensor]:
        """The settled estimates (between rounds there is nothing else)."""
        return self._average | {"rounds": torch.tensor(self.rounds)}

    def load_state_dict(self, state: dict[str, Tensor]) -> Self:
        for layer, slot in self.slots.items():
            out, inputs = slot.sides
            pull = (out, out) if self._small(layer) else (min(inputs, self.columns), out)
            shapes = {"moment": (inputs if self._dense(layer) else self.sketch, inputs), "pull": pull}
            for kind, wanted in shapes.items():
                kept = state.get(f"{kind}.{layer}")
                if kept is not None and tuple(kept.shape) != wanted:
                    raise CheckpointError(f"the drift of {layer} has the shape {tuple(kept.shape)}, not {wanted}")
        self.rounds = int(state["rounds"])
        self._average = {name: tensor.to(self.device) for name, tensor in state.items() if name != "rounds"}
        return self

    def _signs(self, count: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randint(2, (count,), generator=generator) * 2 - 1).to(self.device)


def _size(update: Tensor) -> float:
    """The norm of an update, in double precision: the squares of huge numbers have no room in single precision."""
    return float(torch.linalg.vector_norm(update, dtype=torch.float64))
