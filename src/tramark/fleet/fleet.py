"""A fleet: all clients' personalised models as one base vector and one matrix of marks.

Outside the region every client's model is the base, so n models of d weights take d + n·k·d numbers. A round is folded
in update by update: with client i's update Δ_i (what came back minus what was sent),

    base ← base + Σ w_i Δ_i / Σ w_i            everywhere,
    mark_i ← mark_i + Δ_i inside the region     for a region of places,

which is the paper's masked aggregation, θ_i + M_m ⊙ mean Δ + M_w ⊙ Δ_i, since a client's model equals the base
outside the region. For a subspace the marks are written anew each round, and the updates alone are
averaged: what was sent is subtracted first, so that marks never mix. Nothing of a client's size is ever made for that:
tensors without marks go into the sum in pieces that fit a processor's cache, and only tensors with marks are built.
"""

import hashlib
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from tramark.errors import CheckpointError, SettingError, UnknownClientError
from tramark.fleet.aggregation import Aggregation, Observer, as_dtype
from tramark.fleet.layout import Layout, State, finite
from tramark.fleet.region import Region, load_region
from tramark.fleet.travels import frozen_part
from tramark.fleet.usual import Usual


class Fleet:
    """Base, region and marks of a federation.

    >>> from tramark.fleet.region import Places
    >>> fleet = Fleet(nn.Linear(3, 2), clients=["alice", "bob"])
    >>> fleet.settle(Places(torch.tensor([0, 4])), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> fleet.state("bob")["weight"][0, 0]
    tensor(3.)

    `travels` are the names of the tensors that are sent and come back, if not all do. `constant` holds the others.
    """

    def __init__(self, model: nn.Module, clients: Iterable[str], travels: Collection[str] | None = None) -> None:
        self.layout = Layout.of(model, travels)
        state = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
        self.base = self.layout.flatten(state)
        copies = {name: state[name].detach().cpu().clone() for name in state if name not in self.layout.slots}
        self.buffers = {name: copies.pop(name) for name in self.layout.buffers}
        self.constant = copies
        self.names = tuple(state) if travels is None else self.layout.order
        """The tensors that are sent, in the model's order."""
        self.optional = frozen_part(model) if travels is None else frozenset[str]()
        """The tensors that may turn out in the first round not to come back: those outside the trainable part."""
        self.clients = list(clients)
        self._known = self._rows(self.clients)
        self.region: Region | None = None
        self.marks = torch.empty(len(self.clients), 0, dtype=self.layout.dtype)
        self.held = self._known
        """By client, the row of its mark in `marks`. If some clients have none yet, `maker` makes theirs."""
        self.maker: Callable[[Sequence[str]], Tensor] | None = None
        self._taken: tuple[weakref.ref[Tensor], int, Region, Tensor] | None = None

    def __contains__(self, client: object) -> bool:
        return client in self._known

    def settle(self, region: Region, marks: Tensor, clients: Sequence[str] | None = None) -> None:
        """Set the region and the marks in it, one row for each of `clients`: all, or those that have one so far."""
        held = self._known if clients is None else self._rows(clients)
        if marks.shape != (len(held), region.size):
            raise SettingError(f"marks of shape {tuple(marks.shape)} for {len(held)} clients × {region.size}")
        self.region, self.marks, self.held = region, marks, held

    def hold(self, clients: Iterable[str]) -> None:
        """Make the marks that some clients lack, all at once."""
        clients = list(clients)
        for client in clients:
            if client not in self._known:
                raise UnknownClientError(f"no client {client!r} in the fleet")
        lacking = [client for client in dict.fromkeys(clients) if client not in self.held]
        if lacking:
            assert self.maker is not None
            self.marks = torch.cat([self.marks, self.maker(lacking)])
            self.held = self._rows([*self.held, *lacking])

    @property
    def complete_marks(self) -> bool:
        """Whether every client has its mark."""
        return len(self.held) == len(self.clients)

    def join(self, *clients: str) -> None:
        """Add clients. Until marks are next made, theirs are the base's own values, unless they are made on demand."""
        for client in clients:
            if client in self:
                raise SettingError(f"client {client!r} is in the fleet already")
        complete = self.complete_marks
        self.clients += clients
        self._known = self._rows(self.clients)
        if complete:
            row = self.base.new_empty(0) if self.region is None else self.region.take(self.base)
            self.marks, self.held = torch.cat([self.marks, row.expand(len(clients), -1)]), self._known

    def leave(self, *clients: str) -> None:
        """Remove clients and their marks."""
        for client in clients:
            if client not in self:
                raise UnknownClientError(f"no client {client!r} in the fleet")
        gone, complete = set(clients), self.complete_marks
        self.clients = [client for client in self.clients if client not in gone]
        self._known = self._rows(self.clients)
        self.marks = self.marks[[row for client, row in self.held.items() if client not in gone]]
        self.held = self._known if complete else self._rows([client for client in self.held if client not in gone])

    def weights(self, client: str, *, out: Tensor | None = None) -> Tensor:
        """A client's weights as a flat vector: the base with its mark."""
        row = self._row(client)
        flat = self.base.clone() if out is None else out.copy_(self.base)
        if self.region is not None:
            self.region.put(flat, self.marks[row])
        return flat

    def state(self, client: str | None = None) -> dict[str, Tensor]:
        """What is sent of a client's model, or of the unmarked base: a state dict."""
        own = {} if client is None else {name: self.sent(client, name) for name in self._marked}
        return self.complete(self.layout.state(self.base, self.buffers, own))

    def whole(self, client: str | None = None) -> dict[str, Tensor]:
        """The whole state dict of a client's model, or of the unmarked base: also what does not travel."""
        return self.state(client) | {name: tensor.clone() for name, tensor in self.constant.items()}

    def complete(self, state: State) -> dict[str, Tensor]:
        """A state dict of what comes back, with all that is sent."""
        return {name: state[name] if name in state else self._kept(name).clone() for name in self.names}

    def problem(self, state: State) -> str | None:
        """What is wrong with what came back, or None. Tensors that do not travel may be in it if they are unchanged."""
        if problem := self.layout.problem({name: t for name, t in state.items() if name not in self.constant}):
            return problem
        for name, tensor in self.constant.items():
            if name in state and not torch.equal(state[name].to(tensor), tensor):
                return f"{name} does not travel, but was changed"
        return None

    def narrow(self) -> None:
        """Let only the trainable part come back from now on; the rest stays as it is."""
        self.layout = self.layout.without(self.optional)
        self.constant |= {name: self.buffers.pop(name) for name in self.optional if name in self.buffers}

    def sent(self, client: str, name: str, *, out: Tensor | None = None) -> Tensor:
        """One tensor of a client's model, in the server's precision."""
        slot, row = self.layout.slots[name], self._row(client)
        tensor = slot.of(self.base).clone() if out is None else out.copy_(slot.of(self.base))
        if self.region is not None:
            self.region.put_in(slot, tensor, self.marks[row], self._own(self.region))
        return tensor

    def update(self, client: str, name: str, returned: Tensor, *, out: Tensor | None = None) -> Tensor:
        """One client's update of a tensor: returned − sent, where sent is rounded to the model's dtype."""
        sent = self.sent(client, name, out=out)
        dtype = self.layout.slots[name].dtype
        return torch.sub(returned.to(sent.device, sent.dtype), sent.to(dtype).to(sent.dtype), out=sent)

    def unmarked(self, client: str, returned: State) -> dict[str, Tensor]:
        """A client's returned model with its mark taken off: base + (returned − sent)."""
        own = {
            name: (slot.of(self.base) + self.update(client, name, returned[name])).to(slot.dtype)
            for name, slot in ((name, self.layout.slots[name]) for name in self._marked)
        }
        return self.complete({**returned, **own})

    def rebase(self, base: State) -> None:
        """Replace the base; the marks stay."""
        self.base = self.layout.flatten(base)
        self.buffers = {name: as_dtype(base[name].cpu(), old.dtype) for name, old in self.buffers.items()}

    @property
    def shared(self) -> frozenset[str]:
        """The names of the tensors that are the same in everybody's model."""
        return frozenset(self.names) - self._marked

    @property
    def _marked(self) -> set[str]:
        return set() if self.region is None else self.region.tensors(self.layout)

    def begin(
        self,
        observer: Observer | None = None,
        watch: Callable[[str, State], str | None] | None = None,
        *,
        first: bool = False,
        usual: Usual | None = None,
        discards: bool = False,
    ) -> "Aggregation":
        """Begin to fold in a round's updates.

        The observer is shown those of the tensors it asks for; `watch` is called with every returned model. In the
        `first` round, clients may show that only the trainable part comes back. `usual` limits how much one client
        counts. `discards` says that the rule which makes the base may leave updates out.
        """
        return Aggregation(self, observer, watch, first, usual, discards)

    @property
    def finite(self) -> bool:
        """Whether base, buffers and marks have neither NaN nor infinite values."""
        return all(map(finite, (self.base, self.marks, *self.buffers.values())))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything but the clients' names."""
        state = {"base": self.base, "marks": self.marks}
        state |= {f"buffer.{name}": tensor for name, tensor in self.buffers.items()}
        if self.constant:
            state["constant"] = self._fingerprint()
        if self.region is not None:
            state |= {f"region.{name}": tensor for name, tensor in self.region.state_dict().items()}
        return {name: tensor.clone() for name, tensor in state.items()}

    def load_state_dict(
        self, state: Mapping[str, Tensor], clients: Iterable[str], everybody: Iterable[str] | None = None
    ) -> None:
        """Load a `state_dict`. `clients` are those that had a mark, `everybody` all clients if some had none."""
        clients = list(clients)
        if state["marks"].shape[0] != len(clients):
            raise SettingError(f"marks of {state['marks'].shape[0]} clients for a fleet of {len(clients)}")
        self.load_base(state)
        self.clients = clients if everybody is None else list(everybody)
        self._known = self._rows(self.clients)
        self.held = self._known if everybody is None else self._rows(clients)
        self.marks = state["marks"].clone()
        region = {k.removeprefix("region."): v.clone() for k, v in state.items() if k.startswith("region.")}
        self.region = load_region(region, self.layout) if region else None

    def load_base(self, state: Mapping[str, Tensor]) -> None:
        """Load the base and the buffers of a `state_dict`, and nothing else."""
        if state["base"].shape != self.base.shape:
            raise SettingError(f"{state['base'].numel()} weights do not fit a model of {self.base.numel()}")
        saved = {name.removeprefix("buffer.") for name in state if name.startswith("buffer.")}
        if saved == self.layout.buffers.keys() - self.optional:
            self.narrow()
        if saved != self.layout.buffers.keys():
            raise CheckpointError("this state was saved by a server of which another part of the model travels")
        if self.constant and not torch.equal(state.get("constant", torch.empty(0)), self._fingerprint()):
            raise CheckpointError(
                "the part of the model that does not travel is not what it was: give a model with the same frozen "
                "weights"
            )
        self.base = state["base"].clone()
        self.buffers = {name: state[f"buffer.{name}"].clone() for name in self.layout.buffers}

    def _own(self, region: Region) -> Tensor:
        """The base's own values in the region, cached until the base or the region changes."""
        if self._taken is not None:
            base, version, taken, own = self._taken
            if base() is self.base and version == self.base._version and taken is region:
                return own
        own = region.take(self.base)
        self._taken = weakref.ref(self.base), self.base._version, region, own
        return own

    def _kept(self, name: str) -> Tensor:
        """The base's own value of a tensor that is no weight."""
        return self.buffers[name] if name in self.buffers else self.constant[name]

    def _fingerprint(self) -> Tensor:
        """SHA-256 of what does not travel."""
        total = hashlib.sha256()
        for name, tensor in sorted(self.constant.items()):
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return torch.frombuffer(bytearray(total.digest()), dtype=torch.uint8)

    def _row(self, client: str) -> int:
        if client not in self.held:
            self.hold([client])
        return self.held[client]

    @staticmethod
    def _rows(clients: Iterable[str]) -> dict[str, int]:
        return {client: row for row, client in enumerate(clients)}


class Outgoing(Mapping[str, dict[str, Tensor]]):
    """The models to send, each made when it is asked for: never more than one in memory at a time."""

    def __init__(self, fleet: Fleet, clients: Iterable[str]) -> None:
        self._fleet = fleet
        self._clients = tuple(clients)
        fleet.hold(self._clients)

    def __getitem__(self, client: str) -> dict[str, Tensor]:
        if client not in self._clients:
            raise KeyError(client)
        return self._fleet.state(client)

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)
