"""A fleet: all clients' personalised models as one base vector and one matrix of marks.

Outside the region every client's model is the base, so n models of d weights take d + n·k·d numbers. A round is folded
in update by update: with client i's update Δ_i (what came back minus what was sent),

    base ← base + Σ w_i Δ_i / Σ w_i            everywhere,
    mark_i ← mark_i + Δ_i inside the region     for a region of places,

which is the paper's masked aggregation, θ_i + M_m ⊙ mean Δ + M_w ⊙ Δ_i, since a client's model shows the base only
where its mark does not cover it. For a subspace the marks are written anew each round, and the updates alone are
averaged: what was sent is subtracted first, so that marks never mix. Nothing of a client's size is ever made for that:
tensors without marks go into the sum in pieces that fit a processor's cache, and only tensors with marks are built.
"""

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from tramark.region import Places, Region, load_region
from tramark.weights import Layout, State

PIECE = 2**18
"""Numbers folded in at a time: as many as stay in a processor's cache."""


class Observer(Protocol):
    """Who is shown the updates of some tensors as they come in."""

    @property
    def layers(self) -> Collection[str]:
        """The names of those tensors."""

    def observe(self, updates: Mapping[str, Tensor]) -> None:
        """One client's updates of them, in memory that the next one's are written to."""


class UpdateError(ValueError):
    """An update that cannot be used: which client's, and why."""

    def __init__(self, client: str, reason: str) -> None:
        super().__init__(f"update of client {client!r} refused: {reason}")
        self.client = client
        self.reason = reason


class Fleet:
    """Base, region and marks of a federation.

    >>> fleet = Fleet(nn.Linear(3, 2), clients=["alice", "bob"])
    >>> fleet.settle(Places(torch.tensor([0, 4])), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> fleet.state("bob")["weight"][0, 0]
    tensor(3.)
    """

    def __init__(self, model: nn.Module, clients: Iterable[str]) -> None:
        self.layout = Layout.of(model)
        state = model.state_dict()
        self.base = self.layout.flatten(state)
        self.buffers = {name: state[name].detach().cpu().clone() for name in self.layout.buffers}
        self.clients = list(clients)
        self.region: Region | None = None
        self.marks = torch.empty(len(self.clients), 0, dtype=self.layout.dtype)
        self._taken: tuple[weakref.ref[Tensor], int, Region, Tensor] | None = None

    def settle(self, region: Region, marks: Tensor) -> None:
        """Take up a region and everyone's marks in it, one row for each of `clients`."""
        if marks.shape != (len(self.clients), region.size):
            raise ValueError(f"marks of shape {tuple(marks.shape)} for {len(self.clients)} clients × {region.size}")
        self.region, self.marks = region, marks

    def join(self, client: str) -> None:
        """Add a client; until marks are next made, its mark is the base's own values."""
        if client in self.clients:
            raise ValueError(f"client {client!r} is in the fleet already")
        self.clients.append(client)
        row = self.base.new_empty(0) if self.region is None else self.region.take(self.base)
        self.marks = torch.cat([self.marks, row[None]])

    def leave(self, client: str) -> None:
        """Remove a client and its mark."""
        row = self._row(client)
        self.marks = torch.cat([self.marks[:row], self.marks[row + 1 :]])
        del self.clients[row]

    def weights(self, client: str, *, out: Tensor | None = None) -> Tensor:
        """A client's weights as a flat vector: the base with its mark put in."""
        row = self._row(client)
        flat = self.base.clone() if out is None else out.copy_(self.base)
        if self.region is not None:
            self.region.put(flat, self.marks[row])
        return flat

    def state(self, client: str | None = None) -> dict[str, Tensor]:
        """The state dict of a client's model, or of the unmarked base."""
        own = {} if client is None else {name: self.sent(client, name) for name in self._marked}
        return self.layout.state(self.base, self.buffers, own)

    def sent(self, client: str, name: str, *, out: Tensor | None = None) -> Tensor:
        """One tensor of a client's model, as precisely as the server knows it."""
        slot, row = self.layout.slots[name], self._row(client)
        tensor = slot.of(self.base).clone() if out is None else out.copy_(slot.of(self.base))
        if self.region is not None:
            self.region.put_in(slot, tensor, self.marks[row], self._own(self.region))
        return tensor

    def update(self, client: str, name: str, returned: Tensor, *, out: Tensor | None = None) -> Tensor:
        """How far one tensor of a client's model has moved: returned − sent, as it was sent in the model's dtype."""
        sent = self.sent(client, name, out=out)
        dtype = self.layout.slots[name].dtype
        return torch.sub(returned.to(sent.device, sent.dtype), sent.to(dtype).to(sent.dtype), out=sent)

    def unmarked(self, client: str, returned: State) -> dict[str, Tensor]:
        """What a client would have returned, had it been sent the base."""
        own = {
            name: (slot.of(self.base) + self.update(client, name, returned[name])).to(slot.dtype)
            for name, slot in ((name, self.layout.slots[name]) for name in self._marked)
        }
        return {name: own.get(name, returned[name]) for name in self.layout.order}

    def rebase(self, base: State) -> None:
        """Take up another base; the marks stay what they are."""
        self.base = self.layout.flatten(base)
        self.buffers = {name: _as(base[name].cpu(), old.dtype) for name, old in self.buffers.items()}

    @property
    def shared(self) -> frozenset[str]:
        """The names of the tensors that are the same in everybody's model."""
        return frozenset(self.layout.order) - self._marked

    @property
    def _marked(self) -> set[str]:
        return set() if self.region is None else self.region.tensors(self.layout)

    def begin(self, observer: Observer | None = None) -> "Aggregation":
        """Begin to fold in a round's updates; the observer is shown those of the tensors it asks for."""
        return Aggregation(self, observer)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything but the clients' names."""
        state = {"base": self.base, "marks": self.marks}
        state |= {f"buffer.{name}": tensor for name, tensor in self.buffers.items()}
        if self.region is not None:
            state |= {f"region.{name}": tensor for name, tensor in self.region.state_dict().items()}
        return {name: tensor.clone() for name, tensor in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], clients: Iterable[str]) -> None:
        clients = list(clients)
        if state["marks"].shape[0] != len(clients):
            raise ValueError(f"marks of {state['marks'].shape[0]} clients for a fleet of {len(clients)}")
        self.load_base(state)
        self.clients = clients
        self.marks = state["marks"].clone()
        region = {k.removeprefix("region."): v.clone() for k, v in state.items() if k.startswith("region.")}
        self.region = load_region(region, self.layout) if region else None

    def load_base(self, state: Mapping[str, Tensor]) -> None:
        """Take up the base and the buffers of a `state_dict`, and nothing else."""
        if state["base"].shape != self.base.shape:
            raise ValueError(f"{state['base'].numel()} weights do not fit a model of {self.base.numel()}")
        self.base = state["base"].clone()
        self.buffers = {name: state[f"buffer.{name}"].clone() for name in self.layout.buffers}

    def _own(self, region: Region) -> Tensor:
        """What the base holds in the region: taken once for everybody, as long as both stay what they are."""
        if self._taken is not None:
            base, version, taken, own = self._taken
            if base() is self.base and version == self.base._version and taken is region:
                return own
        own = region.take(self.base)
        self._taken = weakref.ref(self.base), self.base._version, region, own
        return own

    def _row(self, client: str) -> int:
        try:
            return self.clients.index(client)
        except ValueError:
            raise KeyError(f"no client {client!r} in the fleet") from None


@dataclass
class Aggregation:
    """One round's updates on their way into a fleet, which does not change before `finish`.

    Sums are kept in double precision: in any order of arrival they round to the same weights.
    """

    fleet: Fleet
    observer: Observer | None = None
    taken: dict[str, float] = field(default_factory=dict)
    _sum: Tensor = field(init=False, repr=False)
    _apart: set[str] = field(init=False, repr=False)
    _room: dict[str, Tensor] = field(init=False, repr=False)
    """Where the updates that are shown are worked out: fresh memory for each client would take longer than the sums."""
    _buffers: dict[str, Tensor] = field(init=False, repr=False)
    _marks: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        fleet = self.fleet
        self._sum = torch.zeros(fleet.layout.size, dtype=torch.float64)
        shown = set(self.observer.layers if self.observer else ())
        self._apart = fleet._marked | shown
        self._room = {name: torch.empty_like(fleet.layout.slots[name].of(fleet.base)) for name in shown}
        self._buffers = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in fleet.buffers.items()}

    def add(self, client: str, state: State, weight: float = 1.0) -> None:
        """Fold in what a client returned.

        An update that cannot be used raises `UpdateError` and leaves everything as it was.
        """
        fleet, layout = self.fleet, self.fleet.layout
        if client not in fleet.clients:
            raise UpdateError(client, "not a client of this federation")
        if client in self.taken:
            raise UpdateError(client, "a second update in one round")
        if not 0 < weight < float("inf"):
            raise UpdateError(client, f"its weight must be a positive number, not {weight}")
        if problem := layout.problem(state):
            raise UpdateError(client, problem)
        row, seen = fleet.clients.index(client), {}
        own = fleet.marks[row].clone()
        for name, slot in layout.tensors.items():
            if name not in self._apart:
                _fold(slot.of(self._sum), state[name], slot.of(fleet.base), slot.dtype, weight)
                continue
            update = fleet.update(client, name, state[name], out=self._room.get(name))
            for some, moved in zip(_pieces(slot.of(self._sum)), _pieces(update), strict=True):
                some.add_(moved, alpha=weight)
            if isinstance(fleet.region, Places):
                inside, places = fleet.region.inside(slot)
                own[inside] += update.view(-1)[places]
            if self.observer is not None and name in self.observer.layers:
                seen[name] = update
        for name, total in self._buffers.items():
            total.add_(_difference(state[name].cpu(), fleet.buffers[name]), alpha=weight)
        if isinstance(fleet.region, Places):
            self._marks[row] = own
        self.taken[client] = weight
        if self.observer is not None:
            self.observer.observe(seen)

    def mean(self) -> dict[str, Tensor]:
        """What the base will be: the old one and the mean update, as a state dict."""
        fleet, total = self.fleet, sum(self.taken.values())
        return fleet.layout.state(self._mean(fleet.base.clone()), self._mean_buffers()) if total else fleet.state()

    def gives(self, base: State) -> bool:
        """Whether that is this mean, but for the last bits."""
        total, old = sum(self.taken.values()), self.fleet.base
        for name, slot in self.fleet.layout.tensors.items():
            flat = (_pieces(base[name]), _pieces(slot.of(old)), _pieces(slot.of(self._sum)))
            for given, before, summed in zip(*flat, strict=True):
                if not torch.allclose(given.double(), before + summed / total, rtol=1e-6, atol=1e-12):
                    return False
        own = self._mean_buffers()
        return all(torch.allclose(base[n].double(), t.double(), rtol=1e-6, atol=1e-12) for n, t in own.items())

    def finish(self, base: State | None = None) -> None:
        """Let the round take effect: the mean becomes the new base, or another one that was made of the updates.

        Without a single update the fleet stays as it is.
        """
        if not self.taken:
            return
        fleet = self.fleet
        if base is None:
            fleet.buffers = self._mean_buffers()
            self._mean(fleet.base)
        else:
            fleet.rebase(base)
        for row, mark in self._marks.items():
            fleet.marks[row] = mark
        # The largest things that a round needs, and the round goes on without them.
        self._sum, self._room = self._sum.new_empty(0), {}

    def _mean(self, base: Tensor) -> Tensor:
        """The mean update added to a base, in place and in pieces: a whole quotient would be two models large."""
        total = sum(self.taken.values())
        for some, summed in zip(_pieces(base), _pieces(self._sum), strict=True):
            some += summed / total
        return base

    def _mean_buffers(self) -> dict[str, Tensor]:
        total = sum(self.taken.values())
        buffers = {}
        for name, old in self.fleet.buffers.items():
            mean = self._buffers[name] / total
            # A counter may be too large for double precision, its change is not.
            exact = old.dtype != torch.bool and not old.is_floating_point()
            buffers[name] = old + _as(mean, old.dtype) if exact else _as(old.double() + mean, old.dtype)
        return buffers


def _fold(total: Tensor, returned: Tensor, base: Tensor, dtype: torch.dtype, weight: float) -> None:
    """total += weight · (returned − base), where what was really sent is the base in the model's dtype."""
    for some, back, sent in zip(_pieces(total), _pieces(returned), _pieces(base), strict=True):
        some.add_(back.to(sent.device, sent.dtype) - sent.to(dtype).to(sent.dtype), alpha=weight)


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    pieces: tuple[Tensor, ...] = tensor.detach().reshape(-1).split(PIECE)
    return pieces


def _as(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in another dtype, rounded where that has no fractions."""
    return (values if dtype.is_floating_point or not values.is_floating_point() else values.round()).to(dtype)


def _difference(new: Tensor, old: Tensor) -> Tensor:
    """new − old in double precision, exact even for huge counters."""
    if old.is_floating_point() or old.dtype == torch.bool:
        return new.double() - old.double()
    return (new.to(old.dtype) - old).double()


class Outgoing(Mapping[str, dict[str, Tensor]]):
    """The models to send, each made when it is asked for: never more than one in memory at a time."""

    def __init__(self, fleet: Fleet, clients: Iterable[str]) -> None:
        self._fleet = fleet
        self._clients = tuple(clients)
        for client in self._clients:
            fleet._row(client)

    def __getitem__(self, client: str) -> dict[str, Tensor]:
        if client not in self._clients:
            raise KeyError(client)
        return self._fleet.state(client)

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)
