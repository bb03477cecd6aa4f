"""marks.gradient"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import Layout
from tramark.fleet.region import Places, smallest_weights
from tramark.fleet.scratch import device_of, load_weights, loaded
from tramark.keys.keyring import Keyring
from tramark.marks.layers import linear_layers
from tramark.marks.split import GraphRun, Split, channels_last, split


@dataclass(frozen=True)
class GradientSteps:
    """The paper's way: plain gradient steps on each client's key, in a region of the smallest weights.

    Parameters
    ----------
    ratio : the region's share k of all weights.
    per_tensor : choose the region tensor by tensor instead of over the whole model.
    late : choose it in linear layers only. They hold nearly all weights of most nets, and all that comes before them
        is then run once a round.
    rate : the learning rate η_w.
    passes : how often the key's training questions are gone through (the iterations τ_w, if batches are full).
    batch_size : questions a step; None takes all at once.
    summed : never reset the gradient, so that each step follows the sum of all gradients so far.
    """

    ratio: float = 0.01
    per_tensor: bool = False
    late: bool = False
    rate: float = 1e-4
    passes: int = 5
    batch_size: int | None = None
    summed: bool = False

    def layers(self, model: nn.Module) -> tuple[str, ...]:
        return ()

    def begin(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> Keyring:
        within = [f"{layer}.weight" for layer in linear_layers(model)] if self.late else None
        region = smallest_weights(fleet.base, fleet.layout, self.ratio, per_tensor=self.per_tensor, within=within)
        fleet.settle(region, region.take(fleet.base).repeat(len(fleet.clients), 1))
        return keyring

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> None:
        device = device_of(model)
        assert isinstance(fleet.region, Places)
        parts = [Part.of(model, fleet, name, fleet.region) for name in _in_order(model, fleet.region, fleet.layout)]
        late = all(part.linear for part in parts)
        runs: list[Split] = []
        with loaded(model, fleet):
            for row, client in enumerate(fleet.clients):
                key = keyring.key(client)
                answers = torch.tensor(key.answers, device=device).repeat_interleave(keyring.train_variants)
                size = self.batch_size or len(answers)
                if row == 0 or keyring.assignment == "label":
                    inputs = channels_last(keyring.inputs(key, "train").flatten(0, 1).to(device)).split(size)
                    runs = [split(model, parts[0].layer, some) for some in inputs] if late else []
                if runs and all(isinstance(run, GraphRun) and run.leads_to(p.layer) for run in runs for p in parts):
                    steps: Steps = LateSteps(model, parts, runs, answers.split(size))
                else:
                    load_weights(model, fleet, fleet.weights(client))
                    steps = WholeSteps(model, parts, inputs, answers.split(size))
                fleet.marks[row] = self._train(steps, len(inputs), fleet.marks[row].to(device)).cpu()

    def _train(self, steps: "Steps", batches: int, mark: Tensor) -> Tensor:
        total = torch.zeros_like(mark)
        for _ in range(self.passes):
            for batch in range(batches):
                gradient = steps.gradient(mark, batch)
                total = total + gradient if self.summed else gradient
                mark = mark - self.rate * total
        return mark


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a region of places that lies in one tensor."""

    name: str
    weight: nn.Parameter
    some: slice
    """Which part of a mark it is."""
    places: Tensor
    linear: bool
    """Whether it is the matrix of a linear layer."""

    @classmethod
    def of(cls, model: nn.Module, fleet: Fleet, name: str, region: Places) -> "Part":
        some, places = region.inside(fleet.layout.slots[name])
        layer, _, own = name.rpartition(".")
        linear = own == "weight" and isinstance(model.get_submodule(layer), nn.Linear)
        return cls(name, model.get_parameter(name), some, places.to(device_of(model)), linear)

    @property
    def layer(self) -> str:
        return self.name.rpartition(".")[0]

    @cached_property
    def pattern(self) -> Tensor:
        """The places as a sparse matrix in the layer's shape."""
        out, width = self.weight.shape
        rows, columns = self.places // width, self.places % width
        starts = torch.searchsorted(rows, torch.arange(out + 1, device=rows.device))
        values = torch.zeros(len(columns), device=rows.device, dtype=self.weight.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(starts, columns, values, (out, width), check_invariants=False)

    def put(self, mark: Tensor) -> None:
        self.weight.data.view(-1)[self.places] = mark[self.some].to(self.weight.dtype)


class Steps(Protocol):
    """Gives gradients at the places of a region for one client."""

    def gradient(self, mark: Tensor, batch: int) -> Tensor:
        """The loss's gradient at the places, for one batch of the questions, where the places hold `mark`."""


@dataclass(frozen=True, eq=False)
class WholeSteps:
    """Gradients through the whole model."""

    model: nn.Module
    parts: Sequence[Part]
    inputs: Sequence[Tensor]
    """Batch by batch."""
    answers: Sequence[Tensor]

    def gradient(self, mark: Tensor, batch: int) -> Tensor:
        for part in self.parts:
            part.put(mark)
        loss = F.cross_entropy(self.model(self.inputs[batch]), self.answers[batch])
        dense = torch.autograd.grad(loss, [part.weight for part in self.parts], materialize_grads=True)
        return torch.cat([g.flatten()[part.places] for g, part in zip(dense, self.parts, strict=True)]).to(mark.dtype)


class LateSteps:
    """Gradients where all places lie in linear layers.

    Everything up to the first of these layers has been run, this layer with the base's own weights, too: a mark adds
    a sparse product to it. No gradient of a whole matrix is ever formed: at the places it is that of the layer's
    output times the layer's input.
    """

    def __init__(
        self, model: nn.Module, parts: Sequence[Part], runs: Sequence[Split], answers: Sequence[Tensor]
    ) -> None:
        self._parts, self._runs, self._answers = parts, runs, answers
        self._modules = [model.get_submodule(part.layer) for part in parts]
        self._patterns = [part.pattern for part in parts]
        first = parts[0]
        self._base = first.weight.detach().view(-1)[first.places].clone()
        self._columns = [_as_columns(run.layer_inputs) for run in runs]

    def gradient(self, mark: Tensor, batch: int) -> Tensor:
        first, *later = self._parts
        run = self._runs[batch]
        for part in later:
            part.put(mark)
        moved = _with_values(self._patterns[0], (mark[first.some] - self._base).to(run.layer_inputs.dtype))
        response = (moved @ self._columns[batch]).T
        outputs = run.layer_outputs + response.view(run.layer_outputs.shape)
        seen: list[tuple[Tensor, Tensor]] = [(self._columns[batch], outputs.requires_grad_())]
        handles = [
            module.register_forward_hook(lambda _, args, out: seen.append((_as_columns(args[0].detach()), out)))
            for module in self._modules[1:]
        ]
        try:
            loss = F.cross_entropy(run.after(outputs), self._answers[batch])
        finally:
            for handle in handles:
                handle.remove()
        slopes = torch.autograd.grad(loss, [out for _, out in seen])
        pieces = [
            _sampled(pattern, slope.reshape(-1, len(pattern)).T, columns.T)
            for pattern, slope, (columns, _) in zip(self._patterns, slopes, seen, strict=True)
        ]
        return torch.cat(pieces).to(mark.dtype)


def _in_order(model: nn.Module, region: Places, layout: Layout) -> list[str]:
    """The tensors that have places in the region, in the region's order."""
    inside = region.tensors(layout)
    return [name for name in layout.tensors if name in inside]


def _with_values(pattern: Tensor, values: Tensor) -> Tensor:
    places = pattern.crow_indices(), pattern.col_indices()
    return torch.sparse_csr_tensor(*places, values, pattern.shape, check_invariants=False)


def _sampled(pattern: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """left @ right at the places of a pattern."""
    found: Tensor = torch.sparse.sampled_addmm(pattern, left, right, beta=0.0).values()
    return found


def _as_columns(inputs: Tensor) -> Tensor:
    """A layer's inputs as in × N: sparse products are several times faster on columns that lie side by side."""
    return inputs.reshape(-1, inputs.shape[-1]).T.contiguous()
