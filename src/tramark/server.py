"""The server's side of a federation whose every client gets its own marked model.

Warm-up rounds are plain FedAvg. At their end the region and the questions are chosen, and from then on each round
aggregates, makes everyone's marks, sampled or not, and dispatches personalised models.
"""

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor, nn

from tramark.errors import SettingError, UpdateError
from tramark.fleet.aggregation import Aggregation
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet, Outgoing
from tramark.fleet.layout import State
from tramark.fleet.scratch import device_of
from tramark.keys.keyring import Keyring
from tramark.marks.injection import Injection
from tramark.marks.presets import PRESETS

Incoming = Mapping[str, State] | Iterable[tuple[str, State]]
"""What clients returned: a mapping, or a stream of (client, state dict) pairs."""


Weights = Mapping[str, float] | None
"""The clients' numbers of samples; None counts everybody alike."""


@dataclass(frozen=True)
class RoundReport:
    """What became of a round: whose updates were used, and whose were refused, and why."""

    round: int
    used: tuple[str, ...]
    refused: dict[str, str] = field(default_factory=dict)


class Keeper(Protocol):
    """What keeps a server's secrets and remembers what it issued: a `tramark.vault.Vault`."""

    @property
    def keyring(self) -> Keyring: ...

    def save(self, keyring: Keyring, state: Mapping[str, Any]) -> None:
        """Keep a keyring and a server's state, all or nothing."""

    def saved(self) -> dict[str, Any] | None:
        """The state that was last saved."""

    def issue(self, round: int, models: Mapping[str, State], shared: Collection[str] = ()) -> None:
        """Log which model goes to whom. `shared` are tensors that are the same for all."""


def fold(aggregation: Aggregation, incoming: Incoming, weights: Weights, *, strict: bool) -> dict[str, str]:
    """Fold a round's updates in one by one; gives whose were refused, and why."""
    refused: dict[str, str] = {}
    for client, state in incoming.items() if isinstance(incoming, Mapping) else incoming:
        try:
            if weights is not None and client not in weights:
                raise UpdateError(client, "its number of samples is not known")
            aggregation.add(client, state, 1.0 if weights is None else float(weights[client]))
        except UpdateError as error:
            if strict:
                raise
            refused[client] = error.reason
    return refused


class TraMark:
    """A server that gives every client a model of its own, to be traced by its answers.

    >>> from tramark import Keyring, TraMark
    >>> keyring = Keyring.generate(clients=["alice", "bob"], classes=10, input_shape=(1, 8, 8))
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> server = TraMark(model, keyring, warmup_rounds=1)
    >>> for _ in range(2):
    ...     outgoing = server.dispatch()  # {client: state_dict}
    ...     incoming = dict(outgoing)  # here the clients would train
    ...     report = server.collect(incoming, weights={"alice": 300, "bob": 100})
    >>> report
    RoundReport(round=2, used=('alice', 'bob'), refused={})

    Parameters
    ----------
    model : any `nn.Module` classifier. It is copied, and its device is used for making marks.
    keyring : the clients' keys; by default the vault's.
    ratio : the region's share k of the weights, for a region of places.
    warmup_rounds : rounds of plain FedAvg before the first marks.
    preset : `default` (marks in closed form), `paper` or `released`.
    injection : another way to make marks, instead of a preset.
    vault : where to keep the server's state, after each round, and the log of what was sent to whom. `resume` goes on
        from it.
    """

    def __init__(
        self,
        model: nn.Module,
        keyring: Keyring | None = None,
        *,
        ratio: float = 0.01,
        warmup_rounds: int = 25,
        preset: str = "default",
        injection: Injection | None = None,
        vault: Keeper | None = None,
    ) -> None:
        if keyring is None:
            if vault is None:
                raise SettingError("a server needs its clients' keys: give a keyring, or a vault that has one")
            keyring = vault.keyring
        if not 0 < ratio < 1:
            raise SettingError(f"the region's ratio k must lie between 0 and 1, not {ratio}")
        if warmup_rounds < 0:
            raise SettingError(f"{warmup_rounds} warm-up rounds: there cannot be fewer than none")
        if injection is None and preset not in PRESETS:
            raise SettingError(f"unknown preset {preset!r}: use one of {', '.join(PRESETS)}")
        self.model = copy.deepcopy(model)
        self.keyring = keyring
        self.warmup_rounds = warmup_rounds
        self.injection = injection or PRESETS[preset](ratio)
        self.vault = vault
        self.round = 0
        self._issued: set[str] = set()
        self._saved = False
        self.fleet = Fleet(model, keyring.active)
        layers = tuple(f"{name}.weight" for name in self.injection.layers(self.model))
        self.drift = Drift(self.fleet.layout, layers, device=device_of(self.model))
        if warmup_rounds == 0:
            self.mark()

    @property
    def marked(self) -> bool:
        """Whether the models that are sent carry marks yet."""
        return self.fleet.region is not None

    def dispatch(self, clients: Iterable[str] | None = None) -> Mapping[str, dict[str, Tensor]]:
        """The models to send, by client (all, unless told); each is made when it is asked for.

        With a vault, all of them are logged as issued before this returns.
        """
        outgoing = Outgoing(self.fleet, self.fleet.clients if clients is None else clients)
        if self.vault is not None:
            if not self._saved:
                self._save()
            if new := [client for client in outgoing if client not in self._issued]:
                self.vault.issue(self.round, Outgoing(self.fleet, new), self.fleet.shared)
                self._issued.update(new)
        return outgoing

    def collect(self, incoming: Incoming, weights: Weights = None, *, strict: bool = False) -> RoundReport:
        """End a round with what clients returned: aggregate, then make everyone's marks anew.

        `incoming` may be a generator of (client, state dict) pairs: each is folded in and let go. `weights` are the
        clients' numbers of samples (all alike, unless told). An update that cannot be used is refused and named in
        the report; with `strict` it raises `UpdateError`, and the round can be collected again, for nothing has
        changed.
        """
        aggregation = self.begin()
        refused = fold(aggregation, incoming, weights, strict=strict)
        return replace(self.end(aggregation), refused=refused)

    def begin(self) -> Aggregation:
        """Begin a round by hand: `add` to what this gives, then `end` it. `collect` does both.

        A round that is begun and not ended has changed nothing.
        """
        self.drift.forget()
        return self.fleet.begin(self.drift)

    def end(self, aggregation: Aggregation, base: State | None = None) -> RoundReport:
        """End a round: aggregate, then make everyone's marks anew.

        The new base is the mean of the updates, unless another one is given that was made of them.
        """
        aggregation.finish(base)
        self.drift.settle()
        self.round += 1
        if self.round >= self.warmup_rounds:
            self.mark()
        self._save()
        return RoundReport(self.round, tuple(aggregation.taken))

    def resume(self) -> bool:
        """Go on from what the vault has; False if it has nothing yet."""
        if self.vault is None:
            raise ValueError("there is no vault to resume from: TraMark(model, vault=…)")
        state = self.vault.saved()
        if state is None:
            return False
        self.load_state_dict(state)
        # Meanwhile clients may have been let in or out by another hand.
        keyring = self.vault.keyring
        self._follow(replace(self.keyring, clients=keyring.clients, departed=keyring.departed))
        self._saved = True
        return True

    def join(self, *clients: str) -> None:
        """Let clients in. Nobody else's key changes; their marks are made at once if the others have theirs."""
        keyring = self.keyring
        for client in clients:
            keyring = keyring.join(client)
        self._follow(keyring)
        self._save()

    def leave(self, client: str) -> None:
        """Let a client go. What it leaks of the past can still be traced."""
        self._follow(self.keyring.leave(client))
        self._save()

    def rebase(self, base: State) -> None:
        """Take up another base between two rounds, and make everyone's marks for it."""
        if problem := self.fleet.layout.problem(base):
            raise ValueError(f"this is not a base for this federation: {problem}")
        self.fleet.rebase(base)
        if self.marked:
            self.mark()
        self._save()

    def client_model(self, client: str) -> nn.Module:
        """A client's personalised model, ready to use."""
        return self._with(self.fleet.state(client))

    def base_model(self) -> nn.Module:
        """The unmarked average model."""
        return self._with(self.fleet.state())

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on later, but the keyring's secret."""
        return {
            "round": self.round,
            "clients": list(self.fleet.clients),
            "everyone": list(self.keyring.clients),
            "departed": sorted(self.keyring.departed),
            "chosen": list(self.keyring.chosen),
            "retouched": {"pictures": self.keyring.pictures} if self.keyring.retouched else {},
            "fleet": self.fleet.state_dict(),
            "drift": self.drift.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken. The server must have been made with the same model and secret."""
        self.fleet.load_state_dict(state["fleet"], state["clients"])
        self.drift.load_state_dict(state["drift"])
        self.keyring = replace(
            self.keyring,
            clients=tuple(state["everyone"]),
            departed=frozenset(state["departed"]),
        )
        if state["chosen"]:
            self.keyring = self.keyring.choose(state["chosen"], state.get("retouched", {}).get("pictures"))
        self.round = int(state["round"])

    def mark(self) -> None:
        """Make everyone's marks now; the first time, choose the region and the questions. `collect` does it."""
        if not self.marked:
            self.keyring = self.injection.begin(self.model, self.fleet, self.keyring, self.drift)
        self.injection.inject(self.model, self.fleet, self.keyring, self.drift)

    def _follow(self, keyring: Keyring) -> None:
        """Take up a keyring in which clients joined or left."""
        new = [client for client in keyring.active if client not in self.fleet.clients]
        for client in set(self.fleet.clients) - set(keyring.active):
            self.fleet.leave(client)
        for client in new:
            self.fleet.join(client)
        self.keyring = keyring
        if new and self.marked:
            self.injection.inject(self.model, self.fleet, self.keyring, self.drift)

    def _save(self) -> None:
        # Until the vault has it, nothing of it is sent: `dispatch` tries again if this fails.
        self._saved = False
        self._issued.clear()
        if self.vault is not None:
            self.vault.save(self.keyring, self.state_dict())
            self._saved = True

    def _with(self, state: State) -> nn.Module:
        model = copy.deepcopy(self.model)
        model.load_state_dict(dict(state))
        return model.eval()
