"""The interview: asks a suspect questions of a keyring, each once, and keeps the transcript."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from tramark.errors import BudgetSpent, SuspectError
from tramark.evidence.looks import Query
from tramark.evidence.scores import Scores, recorded
from tramark.keys.keyring import Keyring
from tramark.suspects.base import Answers, Suspect
from tramark.suspects.module import Function, suspect_of


class Step(NamedTuple):
    """One query and its answer: a question's number in the pool, which of its held-out variants, the label, scores."""

    question: int
    variant: int
    answer: int
    scores: Scores | None = None


class Interview:
    """The queries to one suspect. What was asked before is not asked again, and the budget is never exceeded.

    Parameters
    ----------
    suspect : a module or a function, which is fed what the keyring's source prepares, or anything that answers raw
        questions.
    budget : the most queries to spend, those of `transcript` included; None for no limit.
    batch : how many questions to ask at a time.
    progress : called with each new step.
    sending, keep : called with the queries that are about to be sent, and with the steps when the answers have come.
    transcript : the steps of the same interview before it was interrupted. It is only read.
    """

    def __init__(
        self,
        suspect: nn.Module | Suspect | Function,
        keyring: Keyring,
        *,
        budget: int | None = None,
        batch: int = 1,
        progress: Callable[[Step], None] | None = None,
        sending: Callable[[Sequence[Query]], None] | None = None,
        keep: Callable[[Sequence[Step]], None] | None = None,
        transcript: Sequence[Step] = (),
    ) -> None:
        self.suspect = suspect_of(suspect, keyring.source.prepare)
        self.keyring = keyring
        self.budget = math.inf if budget is None else budget
        self.batch = batch
        self.progress, self.sending, self.keep = progress, sending, keep
        self._rendered: dict[Query, Tensor] = {}
        self._known: dict[Query, Step] = {step[:2]: step for step in transcript}

    @property
    def transcript(self) -> tuple[Step, ...]:
        """Every query and its answer so far, in the order of asking."""
        return tuple(self._known.values())

    def scores(self, query: Query) -> Scores | None:
        """The suspect's scores in its answer to a query; None if it gave none, or was not asked."""
        return self._known[query].scores if query in self._known else None

    def repeated_with(self, suspect: nn.Module | Suspect | Function) -> Self:
        """An interview of another suspect with the same keyring, without a budget."""
        other = type(self)(suspect, self.keyring, batch=self.batch)
        # The same questions will be asked: none need be rendered twice.
        other._rendered = self._rendered
        return other

    def answers(self, plan: Sequence[Query]) -> Iterator[int]:
        """The suspect's answers to a list of queries, one by one, until the budget is spent."""
        return self._answers(plan, self.batch)

    def all_answers(self, plan: Sequence[Query]) -> list[int]:
        """The suspect's answers to a whole list of queries; fewer if the budget is spent.

        Files and modules are asked at once.
        """
        at_once = getattr(self.suspect, "at_once", False)
        return list(self._answers(plan, max(1, len(plan)) if at_once else self.batch))

    def _answers(self, plan: Sequence[Query], batch: int) -> Iterator[int]:
        for start in range(0, len(plan), batch):
            queries = plan[start : start + batch]
            new = [query for query in queries if query not in self._known]
            self._ask(new[: int(min(len(new), max(0, self.budget - len(self._known))))])
            for query in queries:
                if query not in self._known:
                    return
                yield self._known[query].answer

    def _ask(self, queries: Sequence[Query]) -> None:
        if not queries:
            return
        self._rendered |= {query: self.keyring.asked(*query) for query in queries if query not in self._rendered}
        if self.sending is not None:
            self.sending(queries)
        try:
            answers = self.suspect.ask(torch.stack([self._rendered[query] for query in queries]))
        except SuspectError as error:
            if error.answers is not None:
                self._note(queries, error.answers)
            if isinstance(error, BudgetSpent):
                return
            raise
        labels = answers.labels
        if labels.shape != (len(queries),) or labels.is_floating_point():
            raise SuspectError(
                f"{len(queries)} questions were answered with {labels.dtype} of shape {tuple(labels.shape)}: "
                f"one integer label for each is wanted"
            )
        self._note(queries, answers)

    def _note(self, queries: Sequence[Query], answers: Answers) -> None:
        # A suspect that fails may have answered only the first few.
        labels: list[int] = answers.labels.tolist()
        scores: Iterable[Scores | None] = repeat(None)
        if answers.scores is not None and self.keyring.assignment == "code":
            scores = recorded(answers.scores.double().numpy(), self.keyring.classes)
        said = zip(queries, labels, scores, strict=False)
        steps = [Step(*query, label, given) for query, label, given in said]
        if self.keep is not None and steps:
            self.keep(steps)
        for step in steps:
            self._known[step[:2]] = step
            if self.progress is not None:
                self.progress(step)
