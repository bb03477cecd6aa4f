"""Fold a round's updates into a fleet, one client after another.

Nothing of a whole model's size is made for a client: tensors without marks go into the sum in pieces that fit a
processor's cache, and only tensors with marks are built.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

import torch
from torch import Tensor

from tramark.errors import SettingError, UpdateError, one_line
from tramark.fleet.layout import State, norm, pieces, some_names
from tramark.fleet.screening import Held, accepted, problem_of
from tramark.fleet.usual import Usual

if TYPE_CHECKING:
    from tramark.fleet.fleet import Fleet

NARROWED = (
    "clients return the trainable part of the model alone: the rest is constant from now on. travels='trainable' says "
    "so from the start, and sends no more than that"
)


Incoming = Mapping[str, State] | Iterable[tuple[str, State]]
"""What clients returned: a mapping, or a stream of (client, state dict) pairs."""


Samples = Mapping[str, float] | None
"""The clients' numbers of samples; None counts everybody alike."""


class Observer(Protocol):
    """Sees the updates of some tensors as they come in."""

    @property
    def layers(self) -> Collection[str]:
        """The names of those tensors."""

    def observe(self, updates: Mapping[str, Tensor]) -> None:
        """Take note of one client's updates of them. The buffers are reused for the next client."""


@dataclass
class Aggregation:
    """One round's updates on their way into a fleet, which does not change before `finish`.

    Sums are kept in double precision: in any order of arrival they round to the same weights.
    """

    fleet: "Fleet"
    observer: Observer | None = None
    watch: Callable[[str, State], str | None] | None = None
    """Called with each client and the model that it returned. What it says is why the update is refused."""
    first: bool = False
    """Whether updates may lack all that is outside the trainable part. If all of them do, that becomes constant."""
    usual: Usual | None = None
    """Limits what one client counts."""
    discards: bool = False
    """Whether the rule that makes the base may leave updates out. The observer is shown the others, in the end."""
    taken: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Whose updates were refused, and why."""
    _lacking: set[tuple[str, ...]] = field(default_factory=set, repr=False)
    """What the refused updates lack; an empty tuple if that is not why one was refused."""
    _sum: dict[str, Tensor] = field(init=False, repr=False)
    _whole: float = field(init=False, repr=False)
    """The base's norm."""
    _apart: set[str] = field(init=False, repr=False)
    _room: dict[str, Tensor] = field(init=False, repr=False)
    """Buffers for the updates that the observer sees: allocating them for each client would take longer."""
    _buffers: dict[str, Tensor] = field(init=False, repr=False)
    _weights: dict[str, float] = field(init=False, repr=False)
    """The weight of the updates that brought each buffer."""
    _marks: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _sizes: list[float] = field(default_factory=list, repr=False)
    _declared: list[float] = field(default_factory=list, repr=False)
    _held: list[Held] = field(default_factory=list, repr=False)
    _before: tuple[Tensor, dict[str, Tensor]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        fleet = self.fleet
        self._sum = {name: torch.zeros(slot.shape, dtype=torch.float64) for name, slot in fleet.layout.tensors.items()}
        self._whole = norm(pieces(fleet.base))
        shown = set(self.observer.layers if self.observer else ())
        self._apart = fleet._marked | shown
        self._room = {name: torch.empty_like(fleet.layout.slots[name].of(fleet.base)) for name in shown}
        self._buffers = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in fleet.buffers.items()}
        self._weights = dict.fromkeys(self._buffers, 0.0)

    def add(self, client: str, state: State, weight: float = 1.0) -> None:
        """Fold in what a client returned.

        An update that cannot be used raises `UpdateError` and is noted in `refused`; nothing else changes.
        """
        fleet, layout = self.fleet, self.fleet.layout
        size, problem = self._screen(client, state, weight)
        if problem:
            self.refuse(client, problem, layout.missing(state) if problem.startswith("missing ") else ())
        if self.watch is not None and (problem := self.watch(client, state)):
            self.refuse(client, problem)
        self._sizes.append(size)
        self._declared.append(weight)
        if self.usual is not None:
            weight = self.usual.cap(weight)
        share = weight * (1.0 if self.usual is None else self.usual.share(size))
        row, seen = fleet._row(client), {}
        own = fleet.marks[row].clone()
        for name, slot in layout.tensors.items():
            if name not in self._apart:
                _fold(self._sum[name], state[name], slot.of(fleet.base), slot.dtype, share)
                continue
            update = fleet.update(client, name, state[name], out=self._room.get(name))
            for some, moved in zip(pieces(self._sum[name]), pieces(update), strict=True):
                some.add_(moved, alpha=share)
            if fleet.region is not None:
                fleet.region.absorb(slot, own, update)
            if self.observer is not None and name in self.observer.layers:
                seen[name] = update
        for name, total in ((name, total) for name, total in self._buffers.items() if name in state):
            self._weights[name] += weight
            total.add_(_difference(state[name].cpu(), fleet.buffers[name]), alpha=weight)
        self._marks[row] = own
        self.taken[client] = weight
        if self.observer is None:
            return
        if self.discards:
            self._held.append({name: update.clone() for name, update in seen.items()})
        else:
            self.observer.observe(seen)

    def refuse(self, client: str, reason: str, lacking: Iterable[str] = ()) -> NoReturn:
        """Note that a client's update cannot be used, and raise `UpdateError`."""
        # Some of it are words of the client's.
        reason = one_line(reason)
        self.refused[client] = reason
        self._lacking.add(tuple(lacking))
        raise UpdateError(client, reason)

    def mean(self) -> dict[str, Tensor]:
        """The base after this round, as a state dict: the old one plus the mean update."""
        fleet = self.fleet
        if not self.taken:
            return fleet.state()
        base = fleet.base.clone()
        for name in self._sum:
            self._add_mean(base, name)
        return fleet.complete(fleet.layout.state(base, self._mean_buffers()))

    def size(self) -> float:
        """The Euclidean norm of the mean update. At least one update must have been added, and the round not ended."""
        return norm(self._sum.values()) / sum(self.taken.values())

    def gives(self, base: State) -> bool:
        """Whether a base equals `mean()` up to rounding."""
        total, old = sum(self.taken.values()), self.fleet.base
        for name, slot in self.fleet.layout.tensors.items():
            flat = (pieces(base[name]), pieces(slot.of(old)), pieces(self._sum[name]))
            for given, before, summed in zip(*flat, strict=True):
                if not torch.allclose(given.double(), before + summed / total, rtol=1e-6, atol=1e-12):
                    return False
        own = self._mean_buffers()
        return all(torch.allclose(base[n].double(), t.double(), rtol=1e-6, atol=1e-12) for n, t in own.items())

    def finish(self, base: State | None = None) -> str | None:
        """End the round: the mean becomes the new base, or `base` does, if it is given. Returns what to warn of.

        Without any update the fleet stays as it is; if the first round's updates all lack the same tensors, this raises
        `SettingError`. If they bring the trainable part alone, the rest is constant from then on.
        """
        if not self.taken:
            return self._problem_of_all()
        fleet = self.fleet
        narrowed = self.first and fleet.optional and not any(self._weights.get(name) for name in fleet.optional)
        if narrowed:
            fleet.narrow()
        # A tensor's sum goes when its old weights are kept: sums are the largest things that a round has.
        old = torch.empty_like(fleet.base)
        self._before = old, fleet.buffers
        for name in list(self._sum):
            slot = fleet.layout.tensors[name]
            slot.of(old).copy_(slot.of(fleet.base))
            if base is None:
                self._add_mean(fleet.base, name)
            del self._sum[name]
        if base is None:
            fleet.buffers = self._mean_buffers()
        else:
            fleet.rebase(base)
        for row, mark in self._marks.items():
            self._marks[row], fleet.marks[row] = fleet.marks[row].clone(), mark
        self._show_accepted()
        self._room = {}
        return NARROWED if narrowed else None

    def undo(self) -> None:
        """Bring base and marks back to what they were before `finish`."""
        if self._before is None:
            return
        self.fleet.base, self.fleet.buffers = self._before
        for row, mark in self._marks.items():
            self.fleet.marks[row] = mark
        self._before = None

    def settle(self) -> None:
        """Keep what `finish` did for good: remember what clients sent, and let the old base go."""
        if self.usual is not None and self.taken:
            self.usual.settle(self._declared, self._sizes)
        self._before = None

    def _show_accepted(self) -> None:
        """Show the observer those of the held updates that the new base was made of."""
        if self.observer is None or not self._held or self._before is None:
            return
        slots = self.fleet.layout.slots
        made = {name: slots[name].of(self.fleet.base) - slots[name].of(self._before[0]) for name in self._held[0]}
        for update in accepted(self._held, made):
            self.observer.observe(update)
        self._held = []

    def _add_mean(self, base: Tensor, name: str) -> None:
        """Add the mean update of a tensor to a base, in place and in pieces."""
        total, slot = sum(self.taken.values()), self.fleet.layout.tensors[name]
        for some, summed in zip(pieces(slot.of(base)), pieces(self._sum[name]), strict=True):
            some += summed / total

    def _mean_buffers(self) -> dict[str, Tensor]:
        buffers = {}
        for name, old in self.fleet.buffers.items():
            # Nobody brought it: nothing was added up.
            mean = self._buffers[name] / (self._weights[name] or 1.0)
            # A counter may be too large for double precision, its change is not.
            exact = old.dtype != torch.bool and not old.is_floating_point()
            buffers[name] = old + as_dtype(mean, old.dtype) if exact else as_dtype(old.double() + mean, old.dtype)
        return buffers

    def _screen(self, client: str, state: State, weight: float) -> tuple[float, str | None]:
        """The size of an update, and why it cannot be used; None if it can."""
        if client not in self.fleet:
            return 0.0, "not a client of this federation"
        if client in self.taken:
            return 0.0, "a second update in one round"
        if not 0 < weight < float("inf"):
            return 0.0, f"its weight must be a positive number, not {weight}"
        partly = self.first and state.keys() == set(self.fleet.layout.order) - self.fleet.optional
        part = self.fleet.layout.without(self.fleet.optional) if partly else None
        return problem_of(self.fleet, client, state, self._whole, part)

    def _problem_of_all(self) -> str | None:
        """Why no update could be used, if some came and all were refused; else None."""
        if self.taken or not self.refused:
            return None
        lacking = next(iter(self._lacking)) if len(self._lacking) == 1 else ()
        if not lacking:
            return "no update could be used: " + "; ".join(sorted(set(self.refused.values())))
        brought = [name for name in self.fleet.layout.order if name not in lacking]
        problem = (
            f"no update could be used: they all lack the same {len(lacking)} of {len(lacking) + len(brought)} tensors "
            f"({some_names(lacking)}). If only the others ({some_names(brought)}) travel to clients and back, say "
            "so by travels=… with their names, or freeze the rest (requires_grad=False) and say travels='trainable'"
        )
        if self.first:
            raise SettingError(problem)
        return problem


def fold(aggregation: Aggregation, incoming: Incoming, samples: Samples, *, strict: bool) -> dict[str, str]:
    """Fold a round's updates in one by one; returns whose were refused, and why."""
    for client, state in incoming.items() if isinstance(incoming, Mapping) else incoming:
        try:
            if samples is not None and client not in samples:
                aggregation.refuse(client, "its number of samples is not known")
            aggregation.add(client, state, 1.0 if samples is None else float(samples[client]))
        except UpdateError:
            if strict:
                raise
    return aggregation.refused


def _fold(total: Tensor, returned: Tensor, base: Tensor, dtype: torch.dtype, weight: float) -> None:
    """total += weight · (returned − sent), where sent is the base in the model's dtype."""
    for some, back, sent in zip(pieces(total), pieces(returned), pieces(base), strict=True):
        some.add_(back.to(sent.device, sent.dtype) - sent.to(dtype).to(sent.dtype), alpha=weight)


def as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in another dtype, rounded where that has no fractions."""
    return (values if dtype.is_floating_point or not values.is_floating_point() else values.round()).to(dtype)


def _difference(new: Tensor, old: Tensor) -> Tensor:
    """new − old in double precision, exact even for huge counters."""
    if old.is_floating_point() or old.dtype == torch.bool:
        return new.double() - old.double()
    return (new.to(old.dtype) - old).double()
