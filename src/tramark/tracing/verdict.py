"""Trace: ask a suspect until it is clear who leaked it, that nobody did, or that it cannot be told.

With code answers, the questions are asked in the keyring's order, first one held-out variant of each; if that
neither convicts anybody, alone or in company, nor clears everybody, the other variants follow, and each question
counts once, by the plurality of its answers. What is asked next never depends on a codeword; only when to stop
does. That is what the bound rests on (docs/evidence.md). With label answers there is the paper's arg-max, which
always accuses somebody, and a comparison with models that are known to be unmarked, which need not.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tramark.keys import Keyring
from tramark.tracing.statistics import POWER, Company, Evidence, Floats, Place, excess, rank_p_value, weigh
from tramark.tracing.suspect import BudgetSpent, ModuleSuspect, Suspect, SuspectError

Finding = Literal["client", "several", "nobody", "inconclusive"]
Rule = Literal["default", "paper"]

# Codewords are made for this many clients at a time: enough to be quick, few enough to be small.
CHUNK = 2**14

# Label answers: variants of a client's question that are asked, and how much more accurate on them than every
# unmarked model a suspect must be.
VARIANTS = 10
MARGIN = 0.5


class Step(NamedTuple):
    """One query: a question's number in the pool, which of its held-out variants, and the label answered."""

    question: int
    variant: int
    answer: int


@dataclass(frozen=True)
class Verdict:
    """Who leaked the suspect, or nobody, and what speaks for it.

    Parameters
    ----------
    verdict : "client" or "several" if `clients` are accused, "nobody", or "inconclusive".
    false_accusation_bound : on the probability that anybody innocent is accused; None if the rule has none.
    e_values : everybody's evidence; at n / bound a client is accused. For the accused, as it stood then.
    p_values : P(an innocent matches as often), as if the number of answers had been fixed beforehand.
    matches, answered : everybody's matches among the questions that got an answer.
    power : if nobody is accused, how surely a leaker whose mark survives in half the questions would show.
    transcript : every query, in the order of asking.
    by_company : those of the accused who are so because nobody else was to give enough of the suspect's answers; to
        show that takes everybody's codewords.
    """

    verdict: Finding
    clients: tuple[str, ...]
    queries: int
    false_accusation_bound: float | None
    e_values: dict[str, float] = field(repr=False)
    p_values: dict[str, float] = field(repr=False)
    matches: dict[str, int] = field(repr=False)
    answered: int
    power: float | None
    transcript: tuple[Step, ...] = field(repr=False)
    by_company: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """What a report shows first, as plain values."""
        return {
            "verdict": self.verdict,
            "clients": list(self.clients),
            "queries": self.queries,
            "false_accusation_bound": self.false_accusation_bound,
            "e_values": self.e_values,
            "p_values": self.p_values,
        }


def trace(
    suspect: nn.Module | Suspect,
    keyring: Keyring,
    *,
    false_accusation: float = 1e-6,
    budget: int | None = None,
    rule: Rule = "default",
    exhaustive: bool = False,
    batch: int = 1,
    progress: Callable[[Step], None] | None = None,
    transcript: list[Step] | None = None,
    references: Sequence[nn.Module | Suspect] = (),
) -> Verdict:
    """Ask a suspect and say who leaked it.

    >>> ring = Keyring.generate(clients=["alice", "bob"], classes=10, input_shape=(1, 8, 8))
    >>> trace(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), ring).clients    # nothing to do with either
    ()

    Parameters
    ----------
    suspect : a module, fed what the keyring's triggers prepare, or whatever can be asked raw questions.
    false_accusation : bound on the probability of accusing anybody innocent, over the whole federation.
    budget : the most queries to spend, those of `transcript` included.
    rule : "paper" for the arg-max of the clients' accuracies, which always accuses somebody and has no bound.
    exhaustive : ask every question in every variant, to find accomplices whose share in the suspect is small.
    batch : how many questions to ask at a time; those asked beyond the verdict are in vain, and are counted.
    progress : called with each new query.
    transcript : an earlier trace's queries, which are not asked again. New ones are appended as they come, so
        that it holds them all when the suspect fails and its error ends the trace.
    references : for label answers, models of the same task known to be unmarked; 19 of them or more.
    """
    if budget is not None and budget < 1:
        raise ValueError(f"a budget of {budget} queries: at least one is needed")
    if batch < 1:
        raise ValueError(f"a batch of {batch} questions: at least one must be asked at a time")
    if not 0 < false_accusation < 1:
        raise ValueError(f"a false-accusation bound of {false_accusation}: it is a probability, such as 1e-6")
    if rule not in ("default", "paper"):
        raise ValueError(f"unknown rule {rule!r}: use 'default' or 'paper'")
    interview = _Interview(suspect, keyring, budget, batch, progress, [] if transcript is None else transcript)
    if rule == "paper":
        return _by_accuracy(interview, keyring)
    if keyring.assignment == "label":
        return _by_rank(interview, keyring, references)
    return _by_evidence(interview, keyring, false_accusation, exhaustive)


class _Interview:
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
        self.suspect = ModuleSuspect(suspect, keyring.triggers.prepare) if isinstance(suspect, nn.Module) else suspect
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
            raise ValueError(
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
        self._render([place for place in places if place not in self.rendered])
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

    def _render(self, places: Sequence[Place]) -> None:
        ring = self.keyring
        for question, group in groupby(places, lambda place: place[0]):
            variants = [variant for _, variant in group]
            held_out = range(ring.train_variants + min(variants), ring.train_variants + max(variants) + 1)
            raw = ring.triggers.render(ring.secret, question, held_out)
            self.rendered |= {(question, v): raw[v - min(variants)] for v in variants}


def _by_evidence(interview: _Interview, keyring: Keyring, false_accusation: float, exhaustive: bool) -> Verdict:
    looks = weigh(
        interview.answers,
        _codebook(keyring),
        keyring.chosen,
        variants=keyring.held_out_variants,
        clients=len(keyring.clients),
        classes=keyring.classes,
        false_accusation=false_accusation,
        exhaustive=exhaustive,
    )
    return _verdict(keyring, interview.transcript, looks, false_accusation)


def _verdict(
    keyring: Keyring, transcript: Sequence[Step], looks: Sequence[Evidence], false_accusation: float
) -> Verdict:
    accused = [keyring.clients[i] for i in dict.fromkeys(i for look in looks for i in look.accused)]
    alone = {keyring.clients[i] for look in looks if not isinstance(look, Company) for i in look.accused}
    power = None if accused else max(look.power() for look in looks)
    log_e = np.maximum.reduce([look.log_e() for look in looks])
    # The look that convicted is the one to show; if none did, the fuller one, and the later of two as full.
    look = max(reversed(looks), key=lambda look: (len(look.accused), look.answered))
    return Verdict(
        verdict=_finding(accused, cleared=power is not None and power >= POWER),
        clients=tuple(accused),
        queries=len(transcript),
        false_accusation_bound=false_accusation,
        e_values=dict(zip(keyring.clients, _finite_exp(log_e).tolist(), strict=True)),
        p_values=dict(zip(keyring.clients, look.p().tolist(), strict=True)),
        matches=dict(zip(keyring.clients, look.matches.tolist(), strict=True)),
        answered=look.answered,
        power=power,
        transcript=tuple(transcript),
        by_company=tuple(client for client in accused if client not in alone),
    )


def _finding(accused: Sequence[str], *, cleared: bool) -> Finding:
    if accused:
        return "client" if len(accused) == 1 else "several"
    return "nobody" if cleared else "inconclusive"


def _finite_exp(log_e: Floats) -> Floats:
    # JSON has no infinity, and evidence beyond 1e300 convinces nobody more.
    return np.exp(np.minimum(log_e, 300 * math.log(10)))


def _codebook(keyring: Keyring) -> NDArray[Any]:
    """Everyone's answers, clients × questions, in as few bytes as hold a label."""
    dtype = np.min_scalar_type(keyring.classes - 1)
    count = len(keyring.clients)
    book = np.empty((count, keyring.questions), dtype=dtype, order="F")
    for start in range(0, count, CHUNK):
        book[start : start + CHUNK] = keyring.codebook(clients=slice(start, start + CHUNK)).numpy()
    return book


def _by_accuracy(interview: _Interview, keyring: Keyring) -> Verdict:
    """The paper's Algorithm 3: whoever's questions are answered most accurately."""
    variants = keyring.held_out_variants
    accuracies = _accuracies(interview, keyring, variants)
    if accuracies is None:
        return _unbounded(interview, keyring)
    return _unbounded(interview, keyring, [int(accuracies.argmax())], accuracies, variants)


def _by_rank(interview: _Interview, keyring: Keyring, references: Sequence[nn.Module | Suspect]) -> Verdict:
    """Whose question the suspect answers better than all unmarked models, by more than those ever differ."""
    if not references:
        raise ValueError(
            "label answers alone cannot tell a mark from a habit: pass references=[…], unmarked models of "
            "the same task, or say rule='paper' to have somebody accused in any case"
        )
    variants = min(VARIANTS, keyring.held_out_variants)
    accuracies = _accuracies(interview, keyring, variants)
    if accuracies is None:
        return _unbounded(interview, keyring)
    pool = [accuracies]
    for reference in references:
        other = _Interview(reference, keyring, None, interview.batch, None, [])
        other.rendered = interview.rendered
        asked = _accuracies(other, keyring, variants)
        if asked is None:
            raise SuspectError("a reference gave no answers: unmarked models must answer all questions")
        pool.append(asked)
    above = excess(np.stack(pool))
    habits = above[1:].max(axis=1)
    exceptional = above[0].max() > habits.max()
    return _unbounded(
        interview,
        keyring,
        np.flatnonzero(above[0] >= MARGIN).tolist() if exceptional else [],
        accuracies,
        variants,
        p_values={c: rank_p_value(a, habits) for c, a in zip(keyring.clients, above[0].tolist(), strict=True)},
        cleared=bool(accuracies.max() < MARGIN),
    )


def _accuracies(interview: _Interview, keyring: Keyring, variants: int) -> Floats | None:
    """The share of each client's own answers that the suspect gives; None if the budget did not reach."""
    label = keyring.assignment == "label"
    questions = range(len(keyring.clients)) if label else keyring.chosen
    plan = [(question, variant) for question in questions for variant in range(variants)]
    # All of it will be asked, so what is at hand may as well answer at once.
    at_once = len(plan) if isinstance(interview.suspect, ModuleSuspect) else None
    answers = np.array(list(interview.answers(plan, batch=at_once)))
    if len(answers) < len(plan):
        return None
    given = answers.reshape(len(questions), variants)
    if label:
        return np.asarray((given == np.arange(len(questions))[:, None]).mean(axis=1))
    book = _codebook(keyring)
    hits = [(book[:, [column]] == row).mean(axis=1) for column, row in enumerate(given)]
    return np.asarray(np.mean(hits, axis=0))


def _unbounded(
    interview: _Interview,
    keyring: Keyring,
    accused: Sequence[int] = (),
    accuracies: Floats | None = None,
    variants: int = 0,
    *,
    p_values: dict[str, float] | None = None,
    cleared: bool = False,
) -> Verdict:
    """The verdict of a rule that has neither e-values nor a bound; without accuracies, of one cut short."""
    names = tuple(keyring.clients[i] for i in accused)
    answered = keyring.questions * variants
    matches = [] if accuracies is None else (accuracies * answered).round().astype(int).tolist()
    return Verdict(
        verdict=_finding(names, cleared=cleared),
        clients=names,
        queries=len(interview.transcript),
        false_accusation_bound=None,
        e_values={},
        p_values=p_values or {},
        matches=dict(zip(keyring.clients, matches, strict=False)),
        answered=answered,
        power=None,
        transcript=tuple(interview.transcript),
    )
