"""Try layers out before any answer is written: what a mark in each would cost, and what training would leave of it.

Tried are answers of nobody's, drawn for the trial alone, so that what is chosen does not depend on any client's
answers. What training does to a mark is seen by replaying other clients' last updates on top of it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.moments import Moment
from tramark.fleet.scratch import device_of, loaded
from tramark.keys.keyring import Keyring
from tramark.keys.pictures import Patterns
from tramark.keys.sizes import common_needed, questions_at_least
from tramark.keys.sources import Source, Vectors
from tramark.marks.control import DEAR, FREE, LEAST, MOST, RESERVE
from tramark.marks.directions import fewer_positions, tell_apart
from tramark.marks.draft import LOOKED_AT, Draft
from tramark.marks.layers import OneHot
from tramark.marks.replay import replayed
from tramark.marks.retouch import retouch
from tramark.marks.search import AnswerSheet, Search, leads
from tramark.marks.split import channels_last, split

NOBODIES = 3
"""Codewords of nobody's that are tried."""

CALM = 8
"""Keep the 1/CALM of the candidate questions on which the base is least confident: an opinion of the base must be
overcome for every answer, so less of it is less to write."""


MARGIN = 4.0
"""The margin with which layers are tried, in logits."""

UNKNOWN = 4.0
"""What is taken to be lost of a margin if there is no update to replay."""

STANDARD = 3**0.5
"""The reach of a uniform draw whose standard deviation is 1."""

TRAINED = 2.0
"""What a client's own training takes of a margin, relative to another client's replayed update."""


@dataclass(frozen=True, eq=False)
class Ground:
    """What layers are tried on: the base, the clients' drift and some of their updates."""

    model: nn.Module
    fleet: Fleet
    drift: Drift
    updates: tuple[Mapping[str, Tensor], ...]
    near: float
    spread: float

    def ridge(self, layer: str) -> tuple[Moment, float]:
        """What the clients' data uses of a layer's inputs, and the ridge on it."""
        moment = self.drift.moment(f"{layer}.weight")
        return moment, moment.ridge(self.near)


@dataclass(frozen=True)
class Tried:
    """What came of trying a layer with some questions.

    Parameters
    ----------
    layer : where marks were tried.
    questions : the questions, by their numbers in the pool.
    margin : by how many logits the answers lead, in the median, before training.
    cost : how far the model's answers move on data, by `Draft.cost`.
    reached : the share of the answers that were given, beyond those that are right by chance.
    lost : how much of the margin the worst tenth of the answers lose under another client's update.
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
        return min(MOST, max(LEAST, RESERVE * TRAINED * self.lost))

    @property
    def price(self) -> float:
        """What that margin would cost: moving outputs twice as far costs four times as much.

        A layer that cannot give the answers is worth nothing.
        """
        return (self.cost + 1e-6) * (self.needed / max(self.margin, 0.01)) ** 2 / max(self.reached, 0.01) ** 20


CROWDED = 4
"""Common questions are added while all questions together have at most one in so many of a layer's inputs, or of the
tokens it knows, and there are no more of them than numbers that the model is fed. What a crowded layer costs the task
is seen too late."""


def choose(ground: Ground, keyring: Keyring, layers: Sequence[str], retouch_steps: int) -> tuple[Tried, Keyring]:
    """The layer in which marks that outlive training cost least, and the keyring with as many questions as it bears.

    If it does not bear all questions, fewer are tried, down to as many as the bound needs if most answers survive. The
    order of the questions is that in which the layer tells them apart, and fewer are the first of them. The clients'
    questions come first. Common ones are added if marks that the task does not feel bear them: enough for several
    convictions, or else for one.
    """
    with loaded(ground.model, ground.fleet):
        calm = _calm(ground.model, keyring)
    most, best, more = keyring.questions, None, len(keyring.common)
    for layer in layers:
        order = _told_apart(ground, layer, keyring, calm, most + more)
        tried = _try(ground, layer, keyring.choose(order[:most], common=()))
        if best is None or tried.price < best.price:
            best, common = tried, order[most:]
        if best.price <= FREE:
            # Good enough: the others are not looked at.
            break
    assert best is not None
    least = min(most, questions_at_least(len(keyring.clients), keyring.classes))
    once = min(more, common_needed(len(keyring.clients), keyring.classes))
    # Retouching brings prices down, but not without limits.
    room = _room(ground, best.layer, keyring) - most if best.price <= 10 * DEAR else 0
    sizes = [(most, added, FREE) for added in sorted({more, once}, reverse=True) if 0 < added <= room]
    sizes += [(count, 0, DEAR) for count in sorted({most, round((most * least) ** 0.5), least}, reverse=True)]
    for count, added, limit in sizes:
        plain = keyring.choose(best.questions[:count], common=common[:added])
        chosen = _retouched(ground, best.layer, plain, retouch_steps)
        same = chosen is plain and (count, added) == (most, 0)
        tried = best if same else _try(ground, best.layer, chosen)
        if tried.price <= limit:
            break
    return tried, chosen


def _room(ground: Ground, layer: str, keyring: Keyring) -> int:
    """How many questions leave most of what the layer is fed to the task."""
    with loaded(ground.model, ground.fleet), torch.no_grad():
        [rows] = (
            split(ground.model, layer, one).layer_inputs
            for one in _rendered(keyring.source, keyring.secret, [0], device_of(ground.model))
        )
    if isinstance(rows, OneHot):
        return rows.width // (CROWDED * rows.ids[0].numel())
    return min(rows.shape[-1] // CROWDED, math.prod(keyring.source.shape))


def _retouched(ground: Ground, layer: str, keyring: Keyring, steps: int) -> Keyring:
    """The keyring with its chosen questions retouched for a layer, if they are pictures that can be."""
    source, pictures = keyring.source, keyring.pictures
    if not steps or pictures is None or not isinstance(source, Patterns):
        return keyring
    with loaded(ground.model, ground.fleet):
        better = retouch(
            ground.model, layer, *ground.ridge(layer), pictures, source.prepare, noise=source.noise, steps=steps
        )
    return keyring.choose(keyring.chosen, better, common=keyring.common)


def _calm(model: nn.Module, keyring: Keyring) -> Tensor:
    """The candidate questions on which the model that is loaded is least confident."""
    opinions = []
    with torch.no_grad():
        for inputs in _rendered(keyring.source, keyring.secret, range(keyring.pool), device_of(model)):
            logits = model(inputs).float()
            opinions.append(logits.amax(1) - logits.mean(1))
    kept = max(keyring.pool // CALM, 2 * keyring.questions, len(keyring.in_use))
    return torch.cat(opinions).argsort()[:kept].cpu()


def _told_apart(ground: Ground, layer: str, keyring: Keyring, calm: Tensor, count: int) -> list[int]:
    """The calm questions that a layer tells apart best. Fewer of them would be the first of these."""
    with loaded(ground.model, ground.fleet), torch.no_grad():
        features = torch.cat(
            [
                fewer_positions(split(ground.model, layer, inputs).layer_inputs, 1).flatten(1)
                for inputs in _rendered(keyring.source, keyring.secret, calm.tolist(), device_of(ground.model))
            ]
        )
    found: list[int] = calm[tell_apart(features, *ground.ridge(layer), count)].tolist()
    return found


def looked_at(keyring: Keyring, device: torch.device) -> Tensor:
    """Candidate questions to see costs on, as the model is fed them: none of those in use.

    Rows of a table are drawn as wide as standardised columns are. On questions, which lie farther out, a model is so
    sure of its answers that it would seem to feel nothing.
    """
    used = set(keyring.in_use)
    free = [question for question in range(keyring.pool) if question not in used][:LOOKED_AT]
    source = keyring.source
    if isinstance(source, Vectors):
        source = replace(source, spread=min(source.spread, STANDARD))
    return next(_rendered(source, keyring.secret, free, device))


def _try(ground: Ground, layer: str, keyring: Keyring) -> Tried:
    """Try marks of nobody's in a layer, with the questions that the keyring has in use."""
    model, fleet = ground.model, ground.fleet
    device = device_of(model)
    sheet = _nobodys(keyring, device)
    with loaded(model, fleet):
        others = looked_at(keyring, device)
        draft = Draft.of(model, (layer,), ground.drift, sheet, others, near=ground.near, spread=ground.spread)
        changes = [torch.cat(found) for found in zip(*(found for _, found in draft.search.reach(MARGIN)), strict=True)]
        cost = draft.cost(changes)
        with torch.no_grad():
            issued = leads(draft.search.answer(changes), sheet)
    left = [_left(model, fleet, draft.search, changes, update) for update in ground.updates]
    lost = float(torch.cat([(issued - one).flatten() for one in left]).quantile(0.9)) if left else UNKNOWN
    given, chance = float((issued > 0).float().mean()), 1 / keyring.classes
    return Tried(layer, keyring.chosen, float(issued.median()), cost, (given - chance) / (1 - chance), lost)


def _left(
    model: nn.Module, fleet: Fleet, search: Search, changes: Sequence[Tensor], update: Mapping[str, Tensor]
) -> Tensor:
    """By how much the answers lead once another client's update lies on top of the marks: clients × inputs."""
    with replayed(model, fleet, update), torch.no_grad():
        trained = replace(search, run=split(model, search.layers[0], search.sheet.inputs))
        return leads(trained.answer(changes), search.sheet)


def _nobodys(keyring: Keyring, device: torch.device) -> AnswerSheet:
    """The questions in use with answers that are nobody's."""
    generator = torch.Generator().manual_seed(len(keyring.in_use))
    answers = torch.randint(keyring.classes, (NOBODIES, len(keyring.in_use)), generator=generator)
    return AnswerSheet.asking(keyring, sorted(keyring.in_use), answers, device)


def _rendered(source: Source, secret: bytes, questions: Sequence[int], device: torch.device) -> Iterator[Tensor]:
    """Some questions in their first variant, as the model is fed them, some at a time."""
    for start in range(0, len(questions), 64):
        raw = torch.cat([source.render(secret, question, range(1)) for question in questions[start : start + 64]])
        yield channels_last(source.prepare(raw).to(device))
