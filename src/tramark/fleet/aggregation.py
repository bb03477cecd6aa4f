"""Fold a round's updates into a fleet, one client after another.

Nothing of a whole model's size is made for a client: tensors without marks go into the sum in pieces that fit a
processor's cache, and only tensors with marks are built.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

import torch
from torch import Tensor

from tramark.errors import SettingError, UpdateError
from tramark.fleet.layout import State, some_names

if TYPE_CHECKING:
    from tramark.fleet.fleet import Fleet

PIECE = 2**18
"""Numbers folded in at a time: as many as fit into a processor's cache."""


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
    watch: Callable[[str, State], None] | None = None
    """Called with each client and the model that it returned, once that is accepted."""
    first: bool = False
    """Whether updates may lack all that is outside the trainable part. If all of them do, that becomes constant."""
    taken: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Whose updates were refused, and why."""
    _lacking: set[tuple[str, ...]] = field(default_factory=set, repr=False)
    """What the refused updates lack; an empty tuple if that is not why one was refused."""
    _sum: Tensor = field(init=False, repr=False)
    _apart: set[str] = field(init=False, repr=False)
    _room: dict[str, Tensor] = field(init=False, repr=False)
    """Buffers for the updates that the observer sees: allocating them for each client would take longer."""
    _buffers: dict[str, Tensor] = field(init=False, repr=False)
    _weights: dict[str, float] = field(init=False, repr=False)
    """The weight of the updates that brought each buffer."""
    _marks: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        fleet = self.fleet
        self._sum = torch.zeros(fleet.layout.size, dtype=torch.float64)
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
        if problem := self._problem(client, state, weight):
            self.refuse(client, problem, layout.missing(state) if problem.startswith("missing ") else ())
        row, seen = fleet.clients.index(client), {}
        own = fleet.marks[row].clone()
        for name, slot in layout.tensors.items():
            if name not in self._apart:
                _fold(slot.of(self._sum), state[name], slot.of(fleet.base), slot.dtype, weight)
                continue
            update = fleet.update(client, name, state[name], out=self._room.get(name))
            for some, moved in zip(_pieces(slot.of(self._sum)), _pieces(update), strict=True):
                some.add_(moved, alpha=weight)
            if fleet.region is not None:
                fleet.region.absorb(slot, own, update)
            if self.observer is not None and name in self.observer.layers:
                seen[name] = update
        for name, total in ((name, total) for name, total in self._buffers.items() if name in state):
            self._weights[name] += weight
            total.add_(_difference(state[name].cpu(), fleet.buffers[name]), alpha=weight)
        self._marks[row] = own
        if self.watch is not None:
            self.watch(client, state)
        self.taken[client] = weight
        if self.observer is not None:
            self.observer.observe(seen)

    def refuse(self, client: str, reason: str, lacking: Iterable[str] = ()) -> NoReturn:
        """Note that a client's update cannot be used, and raise `UpdateError`."""
        self.refused[client] = reason
        self._lacking.add(tuple(lacking))
        raise UpdateError(client, reason)

    def mean(self) -> dict[str, Tensor]:
        """The base after this round, as a state dict: the old one plus the mean update."""
        fleet = self.fleet
        if not self.taken:
            return fleet.state()
        return fleet.complete(fleet.layout.state(self._mean(fleet.base.clone()), self._mean_buffers()))

    def size(self) -> float:
        """The Euclidean norm of the mean update. At least one update must have been added, and the round not ended."""
        return float(torch.linalg.vector_norm(self._sum)) / sum(self.taken.values())

    def gives(self, base: State) -> bool:
        """Whether a base equals `mean()` up to rounding."""
        total, old = sum(self.taken.values()), self.fleet.base
        for name, slot in self.fleet.layout.tensors.items():
            flat = (_pieces(base[name]), _pieces(slot.of(old)), _pieces(slot.of(self._sum)))
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
        if base is None:
            fleet.buffers = self._mean_buffers()
            self._mean(fleet.base)
        else:
            fleet.rebase(base)
        for row, mark in self._marks.items():
            fleet.marks[row] = mark
        # The rest of the round does not need these, and they are the largest things that it has.
        self._sum, self._room = self._sum.new_empty(0), {}
        return NARROWED if narrowed else None

    def _mean(self, base: Tensor) -> Tensor:
        """Add the mean update to a base, in place and in pieces: a whole quotient would take two models' memory."""
        total = sum(self.taken.values())
        for some, summed in zip(_pieces(base), _pieces(self._sum), strict=True):
            some += summed / total
        return base

    def _mean_buffers(self) -> dict[str, Tensor]:
        buffers = {}
        for name, old in self.fleet.buffers.items():
            # Nobody brought it: nothing was added up.
            mean = self._buffers[name] / (self._weights[name] or 1.0)
            # A counter may be too large for double precision, its change is not.
            exact = old.dtype != torch.bool and not old.is_floating_point()
            buffers[name] = old + as_dtype(mean, old.dtype) if exact else as_dtype(old.double() + mean, old.dtype)
        return buffers

    def _problem(self, client: str, state: State, weight: float) -> str | None:
        if client not in self.fleet.clients:
            return "not a client of this federation"
        if client in self.taken:
            return "a second update in one round"
        if not 0 < weight < float("inf"):
            return f"its weight must be a positive number, not {weight}"
        if self.first and state.keys() == set(self.fleet.layout.order) - self.fleet.optional:
            return self.fleet.layout.without(self.fleet.optional).problem(state)
        return self.fleet.problem(state)

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
    for some, back, sent in zip(_pieces(total), _pieces(returned), _pieces(base), strict=True):
        some.add_(back.to(sent.device, sent.dtype) - sent.to(dtype).to(sent.dtype), alpha=weight)


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    pieces: tuple[Tensor, ...] = tensor.detach().reshape(-1).split(PIECE)
    return pieces


def as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in another dtype, rounded where that has no fractions."""
    return (values if dtype.is_floating_point or not values.is_floating_point() else values.round()).to(dtype)


def _difference(new: Tensor, old: Tensor) -> Tensor:
    """new − old in double precision, exact even for huge counters."""
    if old.is_floating_point() or old.dtype == torch.bool:
        return new.double() - old.double()
    return (new.to(old.dtype) - old).double()
