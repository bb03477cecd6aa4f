"""One federation's marks from round to round: chosen once, then measured, steered and made anew each round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tramark.errors import Diverged
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import State
from tramark.fleet.region import Region
from tramark.fleet.scratch import device_of, loaded
from tramark.keys.keyring import Keyring
from tramark.marks.injection import Injection, Made, Plan
from tramark.marks.replay import Replay
from tramark.marks.survival import Survival, Survived

ASKED = 4
"""Questions that a new base must answer by finite numbers."""

LOOKED_AT = 64
"""Candidate questions by which it is seen whether a base has begun to learn."""

ALIKE = 0.2
"""The standard deviation over questions, in log-probabilities, below which a base answers all of them alike. Set on
six open federations of the zoo: at most 0.07 on a plateau, at least 0.7 later. A net that learns slowly can be below it
without harm, so marks do not wait for ever (`Beginning.may_wait`)."""


@dataclass
class Marking:
    """How marks are made, what the next ones are to be like, and what is known of the last ones."""

    injection: Injection
    plan: Plan = field(default_factory=Plan)
    made: Made | None = None
    replay: Replay | None = None
    """The last updates of warm-up, on which layers are tried."""
    came: int = 1
    """How many updates were used in the last round."""
    injected: bool = False
    """Whether models carry marks yet: a region alone is none."""
    _survival: Survival | None = None

    def watch(self, model: nn.Module, keyring: Keyring, fleet: Fleet, round: int) -> Callable[[str, State], str | None]:
        """What to show the models that come back in a round: it measures marks, or remembers updates until then."""
        if not self.injected:
            self.replay = Replay(fleet, local=self.injection.early)
            return self.replay.watch
        self._survival = Survival(model, keyring, fleet, round, self.came)
        return self._survival.watch

    def tells_apart(self, model: nn.Module, fleet: Fleet, keyring: Keyring) -> bool:
        """Whether the base answers different questions differently.

        A base that does not is on a plateau, before it has learnt anything, and marks would keep it there.
        """
        if keyring.assignment == "label":
            return True
        questions = range(min(LOOKED_AT, keyring.pool))
        inputs = keyring.source.prepare(keyring.raw(questions, "held-out")[:, 0]).to(device_of(model))
        with loaded(model, fleet), torch.no_grad():
            answers = model(inputs).float().log_softmax(dim=1)
        return float((answers - answers.mean(0)).square().mean().sqrt()) >= ALIKE

    def steer(self) -> Survived | None:
        """What was left of the marks in the models that came back; the next marks are planned by it."""
        survived = self._survival.result if self._survival else None
        if survived is not None and self.made is not None:
            self.plan = self.injection.steer(self.plan, self.made, survived)
        return survived

    def begin(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> Keyring | None:
        """Plan the first marks; the keyring with the questions that were chosen for them.

        None if the model does not bear marks as it is now.
        """
        updates, local = (self.replay.updates, self.replay.local) if self.replay else ([], None)
        with _solvable():
            begun = self.injection.begin(model, fleet, keyring, drift, updates, local)
        if begun is None:
            return None
        keyring, self.plan = begun
        if self.replay:
            self.plan = replace(self.plan, calm=self.replay.size(self.plan.layers))
        self.replay = None
        drift.keep([f"{layer}.weight" for layer in self.plan.layers])
        return keyring

    @property
    def strained(self) -> float:
        """How large clients' updates of the other layers are, beside those before the marks; zero if not known."""
        survived = self._survival.result if self._survival else None
        return survived.moved / self.plan.calm if survived is not None and self.plan.calm else 0.0

    def inject(
        self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, few: Sequence[str] | None = None
    ) -> None:
        """Make everyone's marks as planned, or only those of a `few`: the others' are made on demand."""
        with _solvable():
            if few is None:
                self.made = self.injection.inject(model, fleet, keyring, drift, self.plan)
            else:
                region, marks, self.made = self.injection.make(model, fleet, keyring, drift, self.plan, few)
                fleet.settle(region, marks, few)
        self.plan = replace(self.plan, times=self.plan.times + 1)
        self.injected, self.replay = True, None

    def more(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, clients: Sequence[str]) -> Tensor:
        """Marks, in the fleet's region, for clients that have none yet."""
        assert fleet.region is not None
        # Whoever needs a mark may be computing without gradients.
        with _solvable(), torch.inference_mode(mode=False), torch.enable_grad():
            region, marks, made = self.injection.make(model, fleet, keyring, drift, self.plan, clients)
        before = self.made.unmarked if self.made else ()
        self.made = replace(made, unmarked=before + made.unmarked)
        own, new = fleet.region.state_dict(), region.state_dict()
        if any(not torch.equal(own[name], new[name]) for name in own):
            # Another machine may have found another basis of the same subspace.
            marks = torch.stack([fleet.region.take(_with(region, mark, fleet.base)) for mark in marks])
        return marks

    def check_answers(self, model: nn.Module, fleet: Fleet, keyring: Keyring) -> None:
        """Raise `Diverged` unless the base has finite values, and gives finite answers to a few questions."""
        if not fleet.finite:
            raise Diverged("the new base has NaN or infinite values")
        few = (keyring.chosen or keyring.key(fleet.clients[0]).questions)[:ASKED]
        inputs = keyring.source.prepare(keyring.raw(few, "held-out")[:, 0]).to(device_of(model))
        with loaded(model, fleet), torch.no_grad():
            if not torch.isfinite(model(inputs)).all():
                raise Diverged("the new base answers with NaN or infinity")

    def state_dict(self) -> dict[str, Any]:
        """The plan, and what is known of the last marks and of the last round."""
        made = None if self.made is None else asdict(self.made)
        return {"plan": self.plan.to_dict(), "made": made, "came": self.came, "injected": self.injected}

    def load_state_dict(self, state: Mapping[str, Any], fleet: Fleet, drift: Drift) -> None:
        """Go on from a state. Those of early versions have no plan, but their region tells where marks are."""
        self.came = int(state.get("came", 1))
        self.injected = bool(state.get("injected", fleet.region is not None))
        if fleet.region is None:
            return
        if "plan" in state:
            self.plan = Plan.from_dict(state["plan"])
            self.made = Made.from_dict(state["made"]) if state["made"] else None
        else:
            marked = fleet.region.tensors(fleet.layout)
            self.plan = Plan(tuple(name.removesuffix(".weight") for name in drift.layers if name in marked))
            self.made = None
        drift.keep([f"{layer}.weight" for layer in self.plan.layers])


def _with(region: Region, mark: Tensor, base: Tensor) -> Tensor:
    weights = base.clone()
    region.put(weights, mark)
    return weights


@contextmanager
def _solvable() -> Iterator[None]:
    """Turns equations that have no solution into `Diverged`."""
    try:
        yield
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise Diverged("the equations of the marks cannot be solved for the new base") from error
