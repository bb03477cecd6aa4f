"""Measure what is left of marks in the models that clients return, before they are folded in.

A few returned models of a round are asked a few of their own questions, in variants that marks are not made with and
that suspects are not asked. The share of right answers is the client's *survival*; how far they still lead is the
margin that is left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.evidence.scores import told
from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import State
from tramark.fleet.scratch import device_of, evaluating
from tramark.keys.keyring import Keyring

CLIENTS = 5
"""Returned models that are asked in a round, about: others each round."""

QUESTIONS = 8
"""Questions that each of them is asked."""

LOW = 0.1
"""The share of the answers that may lead by less than `Survived.low`."""


@dataclass(frozen=True)
class Survived:
    """What was left of the marks in a round's returned models.

    Parameters
    ----------
    clients : survival by client, of those who were asked.
    margin : by how many logits right answers lead, in the median over the clients' medians; wrong answers count
        negative.
    low : by how many logits all but a tenth of a client's answers lead at least, for a client that fared worse than
        most: the second worst of five. One client alone, hostile or odd, does not move it.
    moved : how large the clients' updates of tensors without marks are, in the median.
    told : the evidence that the scores of all questions would give, relative to what names a client; for a client that
        fared worse than most. Zero for label answers.
    """

    clients: dict[str, float]
    margin: float
    low: float = 0.0
    moved: float = 0.0
    told: float = 0.0

    @property
    def mean(self) -> float:
        """The mean survival."""
        return sum(self.clients.values()) / len(self.clients)

    @property
    def least(self) -> float:
        """The smallest survival of any client that was asked."""
        return min(self.clients.values())


class Survival:
    """Asks some of the models that come back in a round; `model` is scratch space.

    If about `expected` models come back, every so many-th is asked, beginning with another one each round.
    """

    def __init__(self, model: nn.Module, keyring: Keyring, fleet: Fleet, round: int = 0, expected: int = 1) -> None:
        self._model, self._keyring, self._fleet = model, keyring, fleet
        self._every = max(1, expected // CLIENTS)
        self._next = round % self._every
        self._found: dict[str, float] = {}
        self._margins: list[float] = []
        self._lows: list[float] = []
        self._moved: list[float] = []
        self._told: list[float] = []

    def watch(self, client: str, returned: State) -> str | None:
        """Measure one returned model, if it is its turn. Returns why it cannot be used, if it cannot."""
        self._next -= 1
        if self._next >= 0 or len(self._found) >= CLIENTS:
            return None
        self._next += self._every
        key = self._keyring.key(client)
        inputs, answers = unseen(self._keyring, key.questions[:QUESTIONS], key.answers)
        with evaluating(self._model), torch.no_grad():
            own = self._model.state_dict()
            for name, tensor in returned.items():
                own[name].copy_(tensor)
            logits = self._model(inputs.to(device_of(self._model))).float().cpu()
        if not torch.isfinite(logits).all():
            return "the model answers with NaN or infinity"
        wanted = logits.gather(1, answers[:, None])[:, 0]
        leads = wanted - logits.scatter(1, answers[:, None], -torch.inf).amax(1)
        self._found[client] = float((leads > 0).float().mean())
        self._margins.append(float(leads.median()))
        self._lows.append(float(leads.quantile(LOW)))
        if self._keyring.assignment == "code":
            each = told(
                logits.double().numpy(), answers.tolist(), self._keyring.classes, clients=len(self._keyring.clients)
            )
            self._told.append(each * len(key.questions))
        self._moved.append(size_of_update(self._fleet, client, returned))
        return None

    @property
    def result(self) -> Survived | None:
        """What was measured; None if no model came back."""
        if not self._found:
            return None
        return Survived(
            dict(self._found),
            median(self._margins),
            _worse_than_most(self._lows),
            median(self._moved),
            _worse_than_most(self._told) if self._told else 0.0,
        )


def _worse_than_most(values: Sequence[float]) -> float:
    """The second smallest of five: one client alone does not move it."""
    return sorted(values)[(len(values) - 1) // 3]


def size_of_update(fleet: Fleet, client: str, returned: State) -> float:
    """The norm of a client's update of all weights in tensors without marks."""
    marked = fleet.region.tensors(fleet.layout) if fleet.region is not None else ()
    names = [name for name in fleet.layout.tensors if name not in marked]
    return math.sqrt(sum(float(fleet.update(client, name, returned[name]).square().sum()) for name in names))


def unseen(keyring: Keyring, questions: Sequence[int], answers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Prepared inputs in a variant that is neither written nor asked, and the answers to them.

    A source that has no more variants gives the held-out ones. With label answers there is one question, in several
    variants.
    """
    count = 1 if keyring.assignment == "code" else QUESTIONS
    last = keyring.variants("held-out").stop
    try:
        raw = [keyring.source.render(keyring.secret, question, range(last, last + count)) for question in questions]
    except SettingError:
        first = keyring.variants("held-out").start
        count = min(count, keyring.held_out_variants)
        raw = [keyring.source.render(keyring.secret, question, range(first, first + count)) for question in questions]
    wanted = torch.tensor(answers[: len(questions)]).repeat_interleave(count)
    return keyring.source.prepare(torch.cat(raw)), wanted
