"""Try layers out before any answer is written: what a mark in each would cost, and what training would leave of it.

Tried are answers of nobody's, drawn for the trial alone, so that what is chosen does not depend on any client's
answers. What training does to a mark is seen by replaying other clients' last updates on top of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.scratch import device_of, loaded
from tramark.keys.keyring import Keyring
from tramark.marks.directions import fewer_positions, tell_apart
from tramark.marks.draft import LOOKED_AT, Draft
from tramark.marks.replay import replayed
from tramark.marks.search import AnswerSheet, leads
from tramark.marks.split import channels_last, split

NOBODIES = 3
"""Codewords of nobody's that are tried."""

CALM = 8
"""Keep the 1/CALM of the candidate questions on which the base is least confident: an opinion of the base must be
overcome for every answer, so less of it is less to write."""


@dataclass(frozen=True)
class Tried:
    """What came of trying a layer with some questions.

    Parameters
    ----------
    layer : where marks were tried.
    questions : the questions, by their numbers in the pool.
    margin : what was asked for.
    cost : how far the model's answers move on data, by `Draft.cost`.
    reached : the share of the answers that were given.
    lost : how much of the margin the worst tenth of the answers lose under another client's update; zero without any.
    """

    layer: str
    questions: tuple[int, ...]
    margin: float
    cost: float
    reached: float
    lost: float

    @property
    def needed(self) -> float:
        """The margin that most answers need to outlive training."""
        return max(self.margin / 2, 1.25 * self.lost)

    @property
    def price(self) -> float:
        """What that margin would cost: moving outputs twice as far costs four times as much."""
        return (self.cost + 1e-6) * (self.needed / self.margin) ** 2 / max(self.reached, 0.01) ** 4


def calm_questions(model: nn.Module, keyring: Keyring) -> Tensor:
    """The candidate questions on which the model that is loaded is least confident."""
    opinions = []
    with torch.no_grad():
        for inputs in _rendered(keyring, range(keyring.pool), device_of(model)):
            logits = model(inputs).float()
            opinions.append(logits.amax(1) - logits.mean(1))
    return torch.cat(opinions).argsort()[: max(keyring.pool // CALM, 2 * keyring.questions)].cpu()


def pick_questions(
    model: nn.Module, layer: str, keyring: Keyring, drift: Drift, calm: Tensor, count: int, near: float
) -> tuple[int, ...]:
    """The calm questions that a layer tells apart best. Fewer of them would be the first of these."""
    with torch.no_grad():
        features = torch.cat(
            [
                fewer_positions(split(model, layer, inputs).layer_inputs, 1).flatten(1)
                for inputs in _rendered(keyring, calm.tolist(), device_of(model))
            ]
        )
    moment = drift.moment(f"{layer}.weight")
    picks = tell_apart(features, moment, moment.ridge(near), count)
    return tuple(calm[picks].tolist())


def looked_at(keyring: Keyring, device: torch.device) -> Tensor:
    """Candidate questions to see costs on, as the model is fed them: none of those in use."""
    used = set(keyring.chosen)
    free = [question for question in range(keyring.pool) if question not in used][:LOOKED_AT]
    return next(_rendered(keyring, free, device))


def try_layer(
    model: nn.Module,
    layer: str,
    fleet: Fleet,
    keyring: Keyring,
    drift: Drift,
    updates: Sequence[Mapping[str, Tensor]],
    *,
    near: float,
    margin: float,
    spread: float,
) -> Tried:
    """Try marks of nobody's in a layer, with the questions that the keyring has in use."""
    device = device_of(model)
    sheet = _nobodys(keyring, device)
    with loaded(model, fleet):
        draft = Draft.of(model, (layer,), drift, sheet, looked_at(keyring, device), near=near, spread=spread)
        changes = [torch.cat(found) for found in zip(*(found for _, found in draft.search.reach(margin)), strict=True)]
        cost = draft.cost(changes)
        issued = leads(draft.search.answer(changes), sheet)
    after = [issued]
    for update in updates:
        after.append(_left(model, fleet, layer, draft, changes, sheet, update))
    lost = torch.cat([(issued - left).flatten() for left in after])
    return Tried(
        layer,
        keyring.chosen,
        margin,
        cost,
        float((issued > 0).float().mean()),
        float(lost.quantile(0.9)) if updates else 0.0,
    )


def _left(
    model: nn.Module,
    fleet: Fleet,
    layer: str,
    draft: Draft,
    changes: Sequence[Tensor],
    sheet: AnswerSheet,
    update: Mapping[str, Tensor],
) -> Tensor:
    """By how much the answers lead once another client's update lies on top of the marks: clients × inputs."""
    slot = fleet.layout.slots[f"{layer}.weight"]
    logits = []
    with replayed(model, fleet, update), torch.no_grad():
        matrix = slot.matrix(model.get_parameter(f"{layer}.weight").data)
        for change in changes[0]:
            edit = (change @ draft.parts[0].directions.T).to(matrix)
            matrix += edit
            logits.append(model(sheet.inputs))
            matrix -= edit
    return leads(torch.cat(logits), sheet)


def _nobodys(keyring: Keyring, device: torch.device) -> AnswerSheet:
    """The questions in use with answers that are nobody's."""
    own = AnswerSheet.of(keyring, keyring.active[:1], device)
    generator = torch.Generator().manual_seed(len(keyring.chosen))
    answers = torch.randint(keyring.classes, (NOBODIES, own.answers.shape[1]), generator=generator)
    return replace(own, answers=answers.to(device))


def _rendered(keyring: Keyring, questions: Sequence[int] | range, device: torch.device) -> Iterator[Tensor]:
    """Some questions in their first variant, as the model is fed them, some at a time."""
    for start in range(0, len(questions), 64):
        some = questions[start : start + 64]
        raw = torch.cat([keyring.source.render(keyring.secret, question, range(1)) for question in some])
        yield channels_last(keyring.source.prepare(raw).to(device))
