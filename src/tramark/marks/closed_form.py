"""Marks in closed form, in a subspace: ours, the default.

Let K (in × N) hold a linear layer's inputs for all variants of the m questions, E (m × N) say which column belongs to
which question, and M be the second moment of the layer's inputs on the clients' data, as their updates reveal it. The
edit

    D_i = R_i Bᵀ ,   B = (K Kᵀ + λ M)⁻¹ K Eᵀ  =  M⁻¹K (Kᵀ M⁻¹ K + λ I)⁻¹ Eᵀ

changes the layer's answer to question q by column q of R_i while changing its answers on the clients' data least. B is
the same for all clients. R_i (out × m) is the smallest change that gives client i's answers by a margin, found by a
short search through the layers behind. A change counts as small if the clients' gradients hardly pull at the layer's
outputs in its direction. So the task hardly feels an edit, and hardly any gradient runs back through it. The directions
of B span the region; no inverse is ever formed.

Everything runs in evaluation mode: neither dropout nor the questions' batch statistics reach the model.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.region import Subspace
from tramark.fleet.scratch import device_of, loaded
from tramark.keys.keyring import Keyring
from tramark.marks.control import DEAR, steer, within
from tramark.marks.draft import Draft
from tramark.marks.injection import Made, Plan, made_of
from tramark.marks.layers import candidates, editable_layers
from tramark.marks.search import AnswerSheet, leads
from tramark.marks.survival import Survived
from tramark.marks.trial import Ground, choose, looked_at

SPREAD = 1.0
"""How far apart the logits of the other labels may lie (code answers). Level ones say nothing in an average of several
clients' models, so that it must answer as one of the colluders does."""


PLAIN = 8.0
"""The first margin of label answers, which are not tried, in logits."""

LESS = 3
"""Times that a margin is brought down at most while its marks cost too much: costs do not quite go with its square."""

SEEN = 3
"""Clients on whose marks the cost is seen."""

UNBEARABLE = 10 * DEAR
"""If marks that outlive training would cost more than this, none are made: the task would suffer, and they be lost."""

MOST_COST = 2 * DEAR
"""What marks cost at most, even if they do not give their answers then."""

LARGEST = 30.0
"""How many times as large as its layer an edit may be. Useful ones are up to five times as large; only questions that
hardly reach the layer ask for more."""

TRIED = 2
"""Hidden linear layers, convolutions and embeddings that are tried at most, of each."""


class _Bearable(NamedTuple):
    """The margin that marks may have, the factor by which they must be scaled down even then, and what they cost."""

    margin: float
    scale: float = 1.0
    cost: float = 0.0


@dataclass(frozen=True)
class ClosedForm:
    """Marks written in closed form into directions that the clients' data does not use: the default.

    At the end of warm-up the layers are tried, and the one is chosen in which marks that outlive training cost least,
    with as many questions as it bears. If none bears any, models stay unmarked, and layers are tried again after the
    next round; with `layer_names` or `margin`, marks are made in any case. From then on the margin follows what was
    measured (`tramark.marks.control`).

    Parameters
    ----------
    layer_names : linear layers, embeddings or convolutions to write into, instead of the one that is chosen.
    margin : by how many logits the answers are to lead, if that is not to follow what is measured.
    near : how near to the clients' data marks are written: M's ridge takes away this share of the energy of the
        layer's inputs. The larger, the harder marks are to scrub off, and the more the task feels them. Scaled by
        (r - 1) / 9 for r < 10 labels.
    retouch : steps to retouch the chosen questions for the base, if they are pictures that can be retouched.
    """

    layer_names: tuple[str, ...] = ()
    margin: float | None = None
    near: float = 0.1
    retouch: int = 60
    early: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    on_demand: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.near < 1:
            raise SettingError(f"near is a share of the data's energy, between 0 and 1, not {self.near}")
        if self.retouch < 0:
            raise SettingError(f"{self.retouch} steps to retouch questions: there cannot be fewer than none")

    def layers(self, model: nn.Module, odd: Collection[str] = ()) -> tuple[str, ...]:
        if not self.layer_names:
            return candidates(model, TRIED, odd)
        known = editable_layers(model)
        for name in self.layer_names:
            if name not in known:
                raise SettingError(f"no layer {name!r} to write marks into; this model has {', '.join(known)}")
        return tuple(name for name, _ in model.named_modules() if name in self.layer_names)

    def begin(
        self,
        model: nn.Module,
        fleet: Fleet,
        keyring: Keyring,
        drift: Drift,
        updates: Sequence[Mapping[str, Tensor]],
        local: Tensor | None = None,
    ) -> tuple[Keyring, Plan] | None:
        layers = tuple(name.removesuffix(".weight") for name in drift.layers)
        if keyring.assignment == "label":
            return keyring, replace(self._plan(layers if self.layer_names else layers[:1], PLAIN), limit=math.inf)
        ground = Ground(model, fleet, drift, tuple(updates), self._near(keyring), SPREAD)
        tried, keyring = choose(ground, keyring, layers[:1] if self.layer_names else layers, self.retouch)
        if tried.price > UNBEARABLE and updates and not self.layer_names and self.margin is None:
            return None
        return keyring, self._plan(layers if self.layer_names else (tried.layer,), tried.needed)

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, plan: Plan) -> Made:
        region, marks, made = self.make(model, fleet, keyring, drift, plan, fleet.clients)
        fleet.settle(region, marks)
        return made

    def make(
        self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, plan: Plan, clients: Sequence[str]
    ) -> tuple[Subspace, Tensor, Made]:
        device = device_of(model)
        sheet = AnswerSheet.of(keyring, clients, device)
        # With label answers no two clients share a question, so labels need not be levelled.
        spread = SPREAD if keyring.assignment == "code" else math.inf
        with loaded(model, fleet):
            others = looked_at(keyring, device)
            draft = Draft.of(model, plan.layers, drift, sheet, others, near=self._near(keyring), spread=spread)
            region = draft.region(fleet)
            marks = region.take(fleet.base).repeat(len(clients), 1)
            unmarked = marks[0].clone()
            bearable = _Bearable(plan.margin)
            led: list[Tensor] = []
            for some, changes in draft.search.reach(plan.margin):
                own = replace(sheet, answers=sheet.answers[some])
                if not led:
                    bearable = self._bearable(draft, changes, own, plan)
                if bearable.margin < plan.margin:
                    changes = draft.search.trimmed(changes, own.answers, bearable.margin)
                    changes = [bearable.scale * change for change in changes]
                changes = _bounded(draft, changes, fleet)
                with torch.no_grad():
                    led.append(leads(draft.search.answer(changes), own))
                turned = [part.turned(change).flatten(1) for part, change in zip(draft.parts, changes, strict=True)]
                torch.add(unmarked, torch.cat(turned, dim=1).to("cpu", fleet.base.dtype), out=marks[some])
        return region, marks, made_of(torch.cat(led), sheet, plan.layers, clients, bearable.cost)

    def _bearable(self, draft: Draft, changes: Sequence[Tensor], sheet: AnswerSheet, plan: Plan) -> "_Bearable":
        """The margin, up to that of the plan, at which marks cost no more than they may.

        The first clients stand for all: an edit's size hardly depends on whose answers it gives.
        """
        few, sheet = [change[:SEEN] for change in changes], replace(sheet, answers=sheet.answers[:SEEN])
        margin, cost = plan.margin, draft.cost(few)
        for _ in range(LESS):
            factor = within(cost, draft.strain(few), plan.limit)
            if factor > 0.99:
                return _Bearable(margin, 1.0, cost)
            with torch.no_grad():
                reached = float(leads(draft.search.answer(few), sheet).median())
            margin = factor * min(margin, max(reached, 0.0))
            few = draft.search.trimmed(few, sheet.answers, margin)
            cost = draft.cost(few)
        # Answers that hardly lead may cost more than the limit, but not too much: the task comes first.
        scale = within(cost, 0.0, max(MOST_COST, plan.limit))
        return _Bearable(margin, scale, scale**2 * cost)

    def steer(self, plan: Plan, made: Made, survived: Survived) -> Plan:
        return steer(plan, made, survived) if self.margin is None else plan

    def _plan(self, layers: tuple[str, ...], margin: float) -> Plan:
        return Plan(layers, margin) if self.margin is None else Plan(layers, self.margin, math.inf)

    def _near(self, keyring: Keyring) -> float:
        """Few labels leave marks fewer outputs to answer by, and each of them is felt the more."""
        return self.near * min(1.0, (keyring.classes - 1) / 9)


def _bounded(draft: Draft, changes: Sequence[Tensor], fleet: Fleet) -> list[Tensor]:
    """The changes, scaled down for clients whose edit of a layer would be too large."""
    found = []
    for part, change in zip(draft.parts, changes, strict=True):
        most = LARGEST * float(fleet.layout.slots[part.name].of(fleet.base).float().norm())
        sizes = part.turned(change).flatten(1).norm(dim=1)
        found.append(change * (most / sizes.clamp_min(1e-12)).clamp_max(1)[:, None, None])
    return found
