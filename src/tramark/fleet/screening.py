"""Whether what a client returned can be used, and which updates an aggregation rule has made its base of.

Everything is checked as it will be used: tensors must have the model's own dtypes, so that no value becomes infinite in
another one, and an update may not dwarf the model. Of a rule that leaves updates out (a median, Krum) the server
sees nothing but the base that it made. An update that is far from what came out was not what it was made of.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tramark.fleet.layout import Layout, State, pieces
from tramark.fleet.usual import ABSURD, lower_median

if TYPE_CHECKING:
    from tramark.fleet.fleet import Fleet

Held = dict[str, Tensor]
"""One client's updates of some layers."""

NOT_NEGATIVE = ("running_var", "num_batches_tracked")
"""Buffers, by the last part of their names, that would break a model if they were negative."""

BUFFER = 1e6
"""Other buffers may not have values that are so many times larger than any before, or than one."""

NEAR = 3.0
"""An update this many times farther from what came out than the median is not what it was made of."""


def problem_of(
    fleet: "Fleet", client: str, state: State, whole: float, layout: Layout | None = None
) -> tuple[float, str | None]:
    """The size of a client's update, and why it cannot be used; None if it can.

    `whole` is the base's norm, and `layout` that of a part that comes back.
    """
    if problem := fleet.problem(state) if layout is None else layout.problem(state):
        return 0.0, problem
    layout = layout or fleet.layout
    if problem := layout.odd_dtype(state):
        return 0.0, problem
    for name in layout.buffers:
        if problem := _buffer_problem(name, state[name], fleet.buffers[name]):
            return 0.0, problem
    size = 0.0
    for name, slot in layout.tensors.items():
        if name not in fleet.shared:
            size = math.hypot(size, float(torch.linalg.vector_norm(fleet.update(client, name, state[name]))))
            continue
        for back, own in zip(pieces(state[name]), pieces(slot.of(fleet.base)), strict=True):
            # Infinite if the squares are: such an update is refused all the same.
            size = math.hypot(size, float(torch.linalg.vector_norm(back.to(own) - own)))
    if not size <= ABSURD * max(1.0, whole):
        return size, f"it moves the model by {size:.1e}, which is more than {ABSURD:g} times its own size"
    return size, None


def _buffer_problem(name: str, new: Tensor, old: Tensor) -> str | None:
    if not new.numel() or new.dtype == torch.bool:
        return None
    last = name.rpartition(".")[2]
    if last in NOT_NEGATIVE and float(new.min()) < 0:
        return f"{name} is negative"
    if new.is_floating_point() and float(new.abs().max()) > BUFFER * max(1.0, float(old.abs().max())):
        return f"{name} holds values that are far too large"
    return None


def accepted(held: Sequence[Held], made: Mapping[str, Tensor]) -> Iterator[Held]:
    """The updates that are no farther from what an aggregation rule made than most are."""
    distances = [[float(torch.linalg.vector_norm((own[n] - made[n]).double())) for own in held] for n in made]
    limits = [NEAR * lower_median(of_layer) for of_layer in distances]
    for number, own in enumerate(held):
        if all(of_layer[number] <= limit for of_layer, limit in zip(distances, limits, strict=True)):
            yield own
