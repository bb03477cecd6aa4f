"""Public inputs whose label an unmarked base is sure of: what a suspect's answers are compared with before a trace.

Pictures begin as simple shapes (`keys.public`) and are changed by gradient steps until the base takes each for the
label that it stands for. They are smooth, so that resizing changes them little, and no client has an answer to them.
Every other one is a paler copy that the base would take for another label if it were fed other values.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.fleet.logits import find_logits, take_logits
from tramark.fleet.scratch import evaluating
from tramark.keys.public import public_inputs
from tramark.keys.sources import Source
from tramark.suspects.forward import forward

COUNT = 48
"""Public inputs, at most."""

GRID, STEPS, RATE, NOISE = 14, 40, 0.2, 20.0
"""Pixels of a picture along each side before it is made larger; gradient steps, their rate, and noise in each."""

PALER, BRIGHTER = (0.3, 0.5, 0.75), (0.0, 0.2, 0.4)
"""Factors and offsets by which pictures are made paler."""

WANTED = ((1.0, 0.0), (0.5, 0.5), (0.226, 0.449))
"""How models turn what they want into values from 0 to 1: those that want 0…1, −1…1, and ImageNet's."""

CHANGED = 0.25
"""The share of labels that a base must have changed for its pictures to be made anew."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Public inputs, and the base's label for each; no labels if no base is known.

    Pictures are kept small, and made as large as a source's questions by `raw`.
    """

    inputs: Tensor
    labels: Tensor | None = None

    def raw(self, source: Source) -> Tensor:
        """The public inputs in the shape of a source's questions."""
        return _enlarged(self.inputs, source.shape) if self.inputs.dtype == torch.uint8 else self.inputs

    def to_dict(self) -> dict[str, Any]:
        """Tensors by name."""
        return {"inputs": self.inputs} | ({} if self.labels is None else {"labels": self.labels})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The reference that `to_dict` described."""
        return cls(plain["inputs"], plain.get("labels"))


def reference_of(base: nn.Module, source: Source, classes: int, seed: bytes) -> Reference:
    """Public inputs of which a base is sure, one of each label in turn, and its answers to them."""
    many = classes * max(1, COUNT // classes) if classes < COUNT else COUNT
    if len(source.shape) == 3:
        wanted = torch.arange(many) % classes
        small = _drawn(base, source, wanted, seed)
        # Those that came out as they should, first.
        order = torch.argsort((_labels(base, source, small) != wanted).long(), stable=True)
        small = _with_touchy(base, source, small[order])
        return Reference(small, _labels(base, source, small))
    pool = public_inputs(source, seed, range(2 * many))
    labels = _labels(base, source, pool)
    order = torch.tensor(_in_turn(labels.tolist()))[:many]
    return Reference(pool[order], labels[order])


def renewed(base: nn.Module, source: Source, classes: int, old: Reference | None) -> Reference:
    """What a base answers to the public inputs of old, or to new ones if it is not sure of those any more."""
    kept = None if old is None else still_sure(base, source, old)
    return kept or reference_of(base, source, classes, secrets.token_bytes(16))


def still_sure(base: nn.Module, source: Source, reference: Reference) -> Reference | None:
    """The same inputs with the answers of a later base; None if it has changed too many of them."""
    assert reference.labels is not None
    labels = _labels(base, source, reference.inputs)
    changed = (labels != reference.labels).float().mean().item()
    return None if changed > CHANGED else Reference(reference.inputs, labels)


def without_base(source: Source, seed: bytes) -> Reference:
    """Public inputs of which no base's answers are known."""
    raw = public_inputs(source, seed, range(COUNT))
    if len(source.shape) == 3:
        raw = F.interpolate(raw.float(), size=_grid(source.shape), mode="area").round().to(torch.uint8)
    return Reference(raw)


def _drawn(base: nn.Module, source: Source, wanted: Tensor, seed: bytes) -> Tensor:
    """Small pictures that the base takes for the labels wanted."""
    device = next((weight.device for weight in base.parameters()), torch.device("cpu"))
    start = public_inputs(source, seed, range(len(wanted))).float().to(device)
    begun = F.interpolate(start, size=_grid(source.shape), mode="area") / 255
    drawn = torch.logit(begun.clamp(0.05, 0.95)).requires_grad_()
    optimiser = torch.optim.Adam([drawn], lr=RATE)
    generator = torch.Generator().manual_seed(int.from_bytes(seed[:7], "little"))
    wanted = wanted.to(device)
    with evaluating(base), torch.enable_grad():
        for _ in range(STEPS):
            large = F.interpolate(255 * torch.sigmoid(drawn), size=source.shape[1:], mode="bilinear")
            shift = torch.randint(-1, 2, (2,), generator=generator).tolist()
            noise = torch.randn(large.shape, generator=generator).to(device) * NOISE
            output = base(source.prepare(torch.roll(large, shift, (2, 3)) + noise))
            loss = F.cross_entropy(take_logits(output, find_logits(output)).float(), wanted)
            (drawn.grad,) = torch.autograd.grad(loss, [drawn])
            optimiser.step()
    return (255 * torch.sigmoid(drawn.detach())).round().to(torch.uint8).cpu()


def _with_touchy(base: nn.Module, source: Source, small: Tensor) -> Tensor:
    """Half of the pictures, in turn with paler ones that the base takes for others if it is fed other values."""
    paler = [(factor * small.double() + 255 * offset).clamp(0, 255) for factor in PALER for offset in BRIGHTER]
    pool = torch.cat(paler).round().to(torch.uint8)
    best = _scores(base, source.prepare(_enlarged(pool, source.shape))).topk(2, dim=1)
    labels, margins = best.indices[:, 0], best.values[:, 0] - best.values[:, 1]
    changed = torch.zeros(len(pool))
    for misread in (misreadings := _misreadings(source)):
        seen = source.prepare(255 * misread(_enlarged(pool, source.shape).float() / 255))
        changed += _scores(base, seen).argmax(dim=1) != labels
    # Those that every other range of values changes, before those that some do; the surest first.
    found = [n for n in torch.argsort(changed // max(1, len(misreadings)) * 1e6 + margins).tolist()[::-1] if changed[n]]
    turns = _in_turn(labels[found].tolist()) if found else []
    touchy = pool[[found[turn] for turn in turns][: len(small) // 2]]
    kept = small[: len(small) - len(touchy)]
    both = [one for pair in zip(kept, touchy, strict=False) for one in pair]
    return torch.stack([*both, *kept[len(touchy) :]])


def _misreadings(source: Source) -> list[Callable[[Tensor], Tensor]]:
    """What models that want other values than the federation's see of its pictures, all as values from 0 to 1."""
    low, high = (
        source.prepare(torch.full((1, *source.shape), value, dtype=torch.uint8)).mean((2, 3), keepdim=True)
        for value in (0, 255)
    )
    others = [(factor, offset) for factor, offset in WANTED if _differ(factor * (high - low), factor * low + offset)]
    return [partial(_misread, low=low, high=high, factor=factor, offset=offset) for factor, offset in others]


def _misread(pictures: Tensor, *, low: Tensor, high: Tensor, factor: float, offset: float) -> Tensor:
    return factor * (low + (high - low) * pictures) + offset


def _differ(slope: Tensor, start: Tensor) -> bool:
    return float((slope - 1).abs().max() + start.abs().max()) > 0.02


def _scores(base: nn.Module, inputs: Tensor) -> Tensor:
    return forward(base, inputs).float().cpu()


def _labels(base: nn.Module, source: Source, small: Tensor) -> Tensor:
    return forward(base, source.prepare(Reference(small).raw(source))).argmax(dim=1).cpu()


def _grid(shape: tuple[int, ...]) -> tuple[int, int]:
    return min(GRID, shape[1]), min(GRID, shape[2])


def _enlarged(small: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Pictures made larger, in double precision: the same bytes on every machine."""
    large = F.interpolate(small.double(), size=shape[1:], mode="bilinear")
    return large.round().clamp(0, 255).to(torch.uint8)


def _in_turn(labels: list[int]) -> list[int]:
    """All inputs, one of each label in turn.

    >>> _in_turn([3, 3, 3, 5])
    [0, 3, 1, 2]
    """
    seen: dict[int, int] = {}
    turns = []
    for label in labels:
        seen[label] = seen.get(label, -1) + 1
        turns.append(seen[label])
    return sorted(range(len(labels)), key=turns.__getitem__)
