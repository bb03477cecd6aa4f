"""tracing.interview"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tramark.errors import BudgetSpent, SettingError, SuspectError
from tramark.evidence.statistics import Place
from tramark.keys.keyring import Keyring
from tramark.suspects.base import Suspect
from tramark.suspects.module import ModuleSuspect


class Step(NamedTuple):
    """One query: a question's number in the pool, which of its held-out variants, and the label answered."""

    question: int
    variant: int
    answer: int


class Interview:
    """Asks what a plan wants and has not been asked before, as far as the budget goes."""

    def __init__(
        self,
        suspect: nn.Module | Suspect,
        keyring: Keyring,
        budget: int | None,
        batch: int,
        progress: Callable[[Step], None] | None,
        transcript: list[Step],
    ) -> None:
        self.suspect = ModuleSuspect(suspect, keyring.source.prepare) if isinstance(suspect, nn.Module) else suspect
        self.keyring = keyring
        self.budget = math.inf if budget is None else budget
        self.batch = batch
        self.progress = progress
        transcript[:] = [Step(*step) for step in transcript]
        self.transcript = transcript
        self.rendered: dict[Place, Tensor] = {}
        self.known = {(step.question, step.variant): step.answer for step in transcript}
        questions = range(len(keyring.clients)) if keyring.assignment == "label" else set(keyring.chosen)
        variants = range(keyring.held_out_variants)
        if len(self.known) < len(transcript) or not all(q in questions and v in variants for q, v in self.known):
            raise SettingError(
                "the transcript asks something twice, or what this keyring does not: it must be that of an "
                "earlier trace with the same keyring, as it was written"
            )

    def answers(self, plan: Sequence[Place], *, batch: int | None = None) -> Iterator[int]:
        """The suspect's answers to a plan of (question, variant), one by one, until the budget is spent."""
        size = batch or self.batch
        for start in range(0, len(plan), size):
            part = plan[start : start + size]
            new = [place for place in part if place not in self.known]
            self._ask(new[: int(min(len(new), max(0, self.budget - len(self.known))))])
            for place in part:
                if place not in self.known:
                    return
                yield self.known[place]

    def _ask(self, places: Sequence[Place]) -> None:
        if not places:
            return
        self.rendered |= {place: self.keyring.asked(*place) for place in places if place not in self.rendered}
        try:
            labels = self.suspect.ask(torch.stack([self.rendered[place] for place in places])).labels
        except SuspectError as error:
            if error.answers is not None:
                self._note(places, error.answers.labels.tolist())
            if isinstance(error, BudgetSpent):
                return
            raise
        if labels.shape != (len(places),) or labels.is_floating_point():
            raise SuspectError(
                f"{len(places)} questions were answered with {labels.dtype} of shape {tuple(labels.shape)}: "
                f"one integer label for each is wanted"
            )
        self._note(places, labels.tolist())

    def _note(self, places: Sequence[Place], labels: Sequence[int]) -> None:
        for place, label in zip(places, labels, strict=False):
            step = Step(*place, label)
            self.known[place] = label
            self.transcript.append(step)
            if self.progress is not None:
                self.progress(step)
