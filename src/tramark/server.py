"""The server's side of a federation whose every client gets its own marked model.

Warm-up rounds are plain FedAvg. At their end the region and the questions are chosen. From then on each round
aggregates, makes marks and dispatches personalised models. Marks in a subspace are made for all clients, or, if fewer
than half are sent a model in a round, for those that are, when they are.
"""

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tramark.errors import CheckpointError, Diverged, SettingError
from tramark.evidence.beacon import BeaconSource
from tramark.fleet.aggregation import Aggregation, Incoming, Samples, fold
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet, Outgoing
from tramark.fleet.layout import State
from tramark.fleet.logits import Pick, return_logits
from tramark.fleet.scratch import device_of, load_state, scratch_copy
from tramark.fleet.travels import Travels, freeze_rest, travelling
from tramark.fleet.usual import Usual
from tramark.keys.keyring import Keyring
from tramark.marks.begin import Beginning, Warmup
from tramark.marks.checkup import check
from tramark.marks.injection import Injection
from tramark.marks.marking import Marking
from tramark.marks.presets import preset_named
from tramark.marks.rounds import RoundReport
from tramark.marks.survival import Survived
from tramark.suspects.reference import renewed

if TYPE_CHECKING:
    from tramark.vault.store import Vault


AT_ONCE = 1000
"""Clients whose marks are made beforehand while it is not known how many are sent a model in a round."""

FEW = 3
"""Clients whose marks tell what all marks cost, if the others' are made on demand."""


class TraMark:
    """A server that gives every client a model of its own, to be traced by its answers.

    >>> from tramark import Keyring, TraMark
    >>> keyring = Keyring.generate(
    ...     clients=["alice", "bob"], classes=10, input_shape=(1, 8, 8), normalise=(0.5, 0.5)
    ... )
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> server = TraMark(model, keyring, warmup_rounds=1)
    >>> for _ in range(2):
    ...     outgoing = server.dispatch()  # {client: state_dict}
    ...     incoming = dict(outgoing)  # here the clients would train
    ...     report = server.collect(incoming, samples={"alice": 300, "bob": 100})
    >>> report
    RoundReport(round=2, used=('alice', 'bob'), refused={}, marked=True, survived=Survived(...), ...)
    >>> print(report)
    round 2: 2 updates used, after training ...% of the answers were left, ..., marked in 1: ... questions, ...

    Parameters
    ----------
    model : any `nn.Module` classifier. It is copied, and its device is used for making marks. It is looked over at
        once: whatever would keep it from being marked is named, all at once.
    keyring : the clients' keys; with a vault, the vault's.
    warmup_rounds : rounds of plain FedAvg before the first marks. With "auto", half of `rounds`, 25 at most; if these
        are not known, until the base moves slowly, 25 at most. While the base answers all questions alike, as it does
        before it has learnt anything, marks wait for up to half of the rounds that are left.
    rounds : how many rounds the federation will run, if that is known.
    preset : `default` (marks in closed form), `paper` or `released`.
    injection : another way to make marks, instead of a preset.
    vault : where to keep the server's state, after each round, and the log of what was sent to whom. `resume` goes on
        from it.
    logits : where the logits are in what the model returns (a key, an attribute, a position or a function), if it
        returns more than a tensor and they are not found by themselves.
    weight_cap : how many times the median of the declared numbers of samples a client may count at most; None for any.
    travels : which tensors of the state dict are sent and come back, if not all of them do: "trainable" (parameters
        with `requires_grad`, and the buffers of their modules), their names, or a function of a name. The rest is
        constant: clients need not return it, and must not change it. Without this, the whole model is sent; if all
        clients return the trainable part alone in the first round, the rest is constant from then on.
    beacon : a public beacon that draws the answers when the questions are settled, and those of clients that join
        later; needs a vault. The round waits for its value.
    """

    def __init__(
        self,
        model: nn.Module,
        keyring: Keyring | None = None,
        *,
        warmup_rounds: Warmup = "auto",
        rounds: int | None = None,
        preset: str = "default",
        injection: Injection | None = None,
        vault: "Vault | None" = None,
        logits: Pick | None = None,
        travels: Travels | None = None,
        beacon: BeaconSource | None = None,
        weight_cap: float | None = 10.0,
    ) -> None:
        if beacon is not None and vault is None:
            raise SettingError("answers that a beacon draws need a vault, whose commitments name it: give one")
        self._beacon = beacon
        if vault is not None:
            given = keyring and (keyring.fingerprint, keyring.clients, keyring.departed)
            kept = vault.keyring
            if given and given != (kept.fingerprint, kept.clients, kept.departed):
                raise SettingError("the vault has another keyring than the one given: with a vault, give none")
            keyring = kept
        if keyring is None:
            raise SettingError("a server needs its clients' keys: give a keyring, or a vault that has one")
        self._beginning = Beginning(warmup_rounds, rounds)
        self.usual = Usual(weight_cap)
        self.keyring = keyring
        self.marking = Marking(injection or preset_named(preset))
        self.vault = vault
        self.round = 0
        self._issued: set[str] = set()
        self._sent: set[str] = set()
        self._turnout = 0
        self._kept = 0
        self._saved = False
        self._report: RoundReport | None = None
        self._class = type(model)
        self.model = scratch_copy(model)
        names = None if travels is None else travelling(model, travels)
        freeze_rest(self.model, names)
        pick, layers = check(self.model, keyring, self.injection, logits)
        if pick is not None:
            return_logits(self.model, pick)
        self.fleet = Fleet(model, keyring.active, names)
        self.fleet.maker = self._more
        observed = tuple(f"{layer}.weight" for layer in layers)
        self.drift = Drift(self.fleet.layout, observed, device=device_of(self.model))
        self._mark_if_due()

    @property
    def injection(self) -> Injection:
        """How marks are made."""
        return self.marking.injection

    @property
    def marked(self) -> bool:
        """Whether the models that are sent carry marks yet."""
        return self.marking.injected

    def dispatch(self, clients: Iterable[str] | None = None) -> Mapping[str, dict[str, Tensor]]:
        """The models to send, by client (all, unless told); each is made when it is asked for.

        With a vault, all of them are logged as issued before this returns.
        """
        outgoing = Outgoing(self.fleet, self.fleet.clients if clients is None else clients)
        self._sent.update(outgoing)
        if self.vault is not None:
            if not self._saved:
                self._save()
            elif len(self.fleet.held) != self._kept:
                # Marks that are made on demand are kept until they return, too.
                self.vault.save(self.keyring, self._sound())
                self._kept = len(self.fleet.held)
            if new := [client for client in outgoing if client not in self._issued]:
                without = self.marking.made.unmarked if self.marking.made else ()
                models = Outgoing(self.fleet, new)
                self.vault.issue(self.round, models, self.fleet.shared, marked=self.marked, unmarked=without)
                self._issued.update(new)
        return outgoing

    def collect(self, incoming: Incoming, samples: Samples = None, *, strict: bool = False) -> RoundReport:
        """End a round with what clients returned: aggregate, then make everyone's marks anew.

        `incoming` may be a generator of (client, state dict) pairs: each is folded in and let go. `samples` are the
        clients' numbers of samples (all alike, unless told). An update that cannot be used is refused and named in
        the report; with `strict` it raises `UpdateError`, and the round can be collected again, for nothing has
        changed. If no update can be used, there is a warning that says why.
        """
        aggregation = self.begin()
        self.usual.hear((samples or {}).values())
        fold(aggregation, incoming, samples, strict=strict)
        return self.end(aggregation)

    def begin(self, *, discards: bool = False) -> Aggregation:
        """Begin a round by hand: `add` updates to what this returns, then `end` the round. `collect` does both.

        `discards` says that the rule which makes the base may leave updates out, as a median or Krum does: then the
        server learns nothing from those. A round that is not ended changes nothing.
        """
        self.drift.forget()
        watch = self.marking.watch(self.model, self.keyring, self.fleet, self.round)
        return self.fleet.begin(self.drift, watch, first=self.round == 0, usual=self.usual, discards=discards)

    def end(
        self, aggregation: Aggregation, base: State | None = None, *, refused: Mapping[str, str] | None = None
    ) -> RoundReport:
        """End a round: aggregate, then make everyone's marks anew.

        The new base is the mean of the updates, or `base`, if another aggregation rule made one from them. `refused`
        says whose updates were not added, and why; the report has it. If the new base, its answers or its marks are not
        finite, the round is undone: base and marks stay as they were, and the report says why.
        """
        fleet, before = self.fleet, (self.keyring, self.marking, copy.copy(self.drift))
        held = fleet.region, fleet.marks, fleet.held
        self._turnout, self._sent = len(self._sent) or self._turnout, set()
        self.marking = copy.copy(self.marking)
        ended = self.round + 1
        try:
            remark, survived = self._advance(aggregation, base)
            strained, discarded = self.marking.strained, ""
        except Diverged as error:
            fleet.region, fleet.marks, fleet.held = held
            aggregation.undo()
            self.keyring, self.marking, self.drift = before
            if self._beacon is not None and self.vault is not None:
                self.keyring = self.vault.keyring  # What a beacon drew is in the vault already.
            self._undone()
            remark, survived, strained, discarded = None, None, 0.0, str(error)
        else:
            aggregation.settle()
        self.round = ended
        self.drift.forget()
        if remark:
            warnings.warn(f"round {self.round}: {remark}", stacklevel=3)
        due = self._beginning.due(self.round + self.injection.early)
        missing = due and not discarded and self.fleet.region is None
        unlearnt = missing and not self._ready()
        self._report = RoundReport(
            self.round,
            () if discarded else tuple(aggregation.taken),
            {**aggregation.refused, **(refused or {})},
            marked=self.marked,
            survived=survived,
            made=self.marking.made,
            begins_after=None if self.marked or missing else self._begins_after,
            unbearable=missing and not unlearnt,
            unlearnt=unlearnt,
            strained=strained,
            discarded=discarded,
        )
        self._save()
        for concern in self._report.concerns(self.keyring.classes):
            warnings.warn(concern, stacklevel=3)
        return self._report

    def _advance(self, aggregation: Aggregation, base: State | None) -> tuple[str | None, Survived | None]:
        """Make the next base and its marks. Returns what to warn of, and what was left of the last marks.

        `Diverged` if any of it is not finite; the caller undoes it.
        """
        size = aggregation.size() if aggregation.taken and not self.marked else None
        remark = aggregation.finish(base)
        if aggregation.taken:
            self.marking.check_answers(self.model, self.fleet, self.keyring)
        self.drift.settle()
        if size is not None:
            self._beginning.observe(size)
        self.marking.came = len(aggregation.taken)
        survived = self.marking.steer()
        self.round += 1
        if self.marked or (self._beginning.due(self.round + self.injection.early) and self._ready()):
            self.mark()
        if not (self.fleet.finite and self.drift.finite):
            raise Diverged("the marks or what is known of the clients' data have NaN or infinite values")
        return remark, survived

    def _ready(self) -> bool:
        """Whether the base is ready for its first marks, or they wait no longer."""
        if self.fleet.region is not None or not self._beginning.may_wait(self.round):
            return True
        return self.marking.tells_apart(self.model, self.fleet, self.keyring)

    def _undone(self) -> None:
        """Called when a round is undone, before its report is saved."""

    def expect(self, rounds: int) -> None:
        """Say how many rounds the federation runs in all; `SettingError` if none of them would be marked."""
        if not self.marked:
            self._beginning.expect(rounds)
            self._mark_if_due()

    def resume(self) -> bool:
        """Go on from what the vault has; False if it has nothing yet."""
        if self.vault is None:
            raise SettingError("there is no vault to resume from: TraMark(model, vault=…)")
        state = self.vault.saved()
        if state is None:
            return False
        self.keyring = self.vault.keyring
        self.load_state_dict(state)
        self._saved = True
        self._mark_if_due()
        return True

    def join(self, *clients: str) -> None:
        """Add clients. Nobody else's key changes. If the others have marks already, the new ones get theirs at once."""
        keyring = self.keyring.join(*clients)
        if len(keyring.clients) > len(self.keyring.clients) and keyring.beacons:
            keyring = self._drawn(keyring)
        self._follow(keyring)
        self._save()

    def leave(self, client: str) -> None:
        """Remove a client. What it leaked before can still be traced."""
        self._follow(self.keyring.leave(client))
        self._save()

    def rebase(self, base: State) -> None:
        """Replace the base between two rounds, and make the marks for it."""
        if problem := self.fleet.problem(base):
            raise SettingError(f"this is not a base for this federation: {problem}")
        self.fleet.rebase(base)
        if self.marked:
            self.mark()
        self._save()

    def client_model(self, client: str) -> nn.Module:
        """A client's personalised model, ready to use."""
        return self._with(self.fleet.whole(client))

    def base_model(self) -> nn.Module:
        """The unmarked average model."""
        return self._with(self.fleet.whole())

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on later but the keyring, which its owner keeps: the vault, or else the user."""
        return {
            "round": self.round,
            "clients": list(self.fleet.held),
            "on_demand": not self.fleet.complete_marks,
            "turnout": self._turnout,
            "keyring": self.keyring.fingerprint,
            "fleet": self.fleet.state_dict(),
            "drift": self.drift.state_dict(),
            "begin": self._beginning.state_dict(),
            "usual": self.usual.state_dict(),
            **self.marking.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken.

        The server must have been made with the same model, and with the keyring as it was then or with clients that
        have joined or left since.
        """
        marked = any(name.startswith("region.") for name in state["fleet"])
        if marked and state.get("keyring", self.keyring.fingerprint) != self.keyring.fingerprint:
            raise CheckpointError(
                "these marks were made with another keyring, or with other questions of it: keep the server's keyring "
                "with its state, and give both back, or use a vault"
            )
        everybody = self.keyring.active if state.get("on_demand") else None
        self.fleet.load_state_dict(state["fleet"], state["clients"], everybody)
        self._turnout = int(state.get("turnout", 0))
        self._kept = len(self.fleet.held)
        self.marking.load_state_dict(state, self.fleet, self.drift)
        self.drift.load_state_dict(state["drift"])
        self.round = int(state["round"])
        self._beginning.load_state_dict(state.get("begin", {}))
        self.usual.load_state_dict(state.get("usual", {}))
        self._report = None
        self._follow(self.keyring)

    def mark(self) -> None:
        """Make everyone's marks now; the first time, choose region and questions first. `collect` calls this.

        If no layer bears marks as the base is now, there are none yet. Nor are there if the first ones are made of what
        clients return next (`Injection.waits`); before the first round, they are made at once.
        """
        if self.fleet.region is None:
            begun = self.marking.begin(self.model, self.fleet, self.keyring, self.drift)
            if begun is None:
                return
            self.keyring = self._drawn(begun)
            if self.injection.waits and self.round:
                return
        self._inject()

    def _drawn(self, keyring: Keyring) -> Keyring:
        """The keyring with answers that the beacon drew, if there is one."""
        if self._beacon is None or self.vault is None:
            return keyring
        from tramark.vault.beacons import draw_answers

        return draw_answers(self.vault, keyring, self._beacon)

    @property
    def _begins_after(self) -> int | None:
        """The round after which models carry marks, if that is known."""
        after, injection = self._beginning.after, self.injection
        return None if after is None else after + injection.waits - injection.early

    def _mark_if_due(self) -> None:
        """Make the first marks between two rounds, if it is time: without warm-up, or if the settings changed."""
        if self.fleet.region is None and self._beginning.due(self.round) and self._ready():
            self.mark()
            self._saved = False  # `dispatch` saves them

    def _follow(self, keyring: Keyring) -> None:
        """Use a keyring in which clients joined or left, and bring the fleet in line with it."""
        new = [client for client in keyring.active if client not in self.fleet]
        if len(self.fleet.clients) + len(new) > len(keyring.active):
            self.fleet.leave(*set(self.fleet.clients) - set(keyring.active))
        if new:
            self.fleet.join(*new)
        self.keyring = keyring
        if new and self.marked and self.fleet.complete_marks:
            self._inject()

    def _inject(self) -> None:
        """Make the marks of all clients or, if few of them are sent a model in a round, only as many as tell the cost.

        The others' are made when they are sent their models.
        """
        clients, turnout = self.fleet.clients, self._turnout or AT_ONCE
        demand = self.injection.on_demand and self.keyring.assignment == "code" and 2 * turnout < len(clients)
        self.marking.inject(self.model, self.fleet, self.keyring, self.drift, clients[:FEW] if demand else None)

    def _more(self, clients: Sequence[str]) -> Tensor:
        """Marks of clients that have none yet."""
        return self.marking.more(self.model, self.fleet, self.keyring, self.drift, clients)

    def _save(self) -> None:
        # Nothing is sent before the vault has it: `dispatch` tries again if this fails.
        self._saved = False
        self._issued.clear()
        if self.vault is not None:
            state = self._sound()
            report = None if self._report is None else asdict(self._report)
            known = (self.keyring.source, self.keyring.classes, self.vault.reference()) if self.marked else None
            reference = renewed(self.base_model(), *known) if known else None
            self.vault.save(self.keyring, state, report, reference)
            self._saved, self._kept = True, len(self.fleet.held)

    def _sound(self) -> dict[str, Any]:
        """The server's state; `CheckpointError` if it must not be saved."""
        if not (self.fleet.finite and self.drift.finite):
            raise CheckpointError("the server's state has NaN or infinite values: it is not saved")
        return self.state_dict()

    def _with(self, state: State) -> nn.Module:
        model = copy.deepcopy(self.model)
        model.__class__ = self._class
        load_state(model, state)
        return model.eval()
