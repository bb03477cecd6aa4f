"""Trace: ask a suspect until it is clear who leaked it, that nobody did, or that it cannot be told.

With code answers, the questions are asked in the keyring's order, first one held-out variant of each. If that neither
convicts anybody, alone or in company, nor clears everybody, the other variants follow, and each question counts once,
by the plurality of its answers. What is asked next never depends on a codeword; only when to stop does. The bound
rests on that (docs/evidence.md). `labels` has the rules without a bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from torch import nn

from tramark.errors import SettingError, SuspectError
from tramark.evidence.looks import conclude, weigh
from tramark.evidence.premise import ASSUMED, Premise
from tramark.keys.keyring import Keyring
from tramark.suspects.base import Suspect
from tramark.suspects.module import Function
from tramark.tracing.codebook import codebook_of
from tramark.tracing.interview import Interview, Step
from tramark.tracing.labels import by_accuracy, by_rank
from tramark.tracing.verdict import Verdict

Rule = Literal["default", "paper"]


def trace(
    suspect: nn.Module | Suspect | Function,
    keyring: Keyring,
    *,
    false_accusation: float = 1e-6,
    budget: int | None = None,
    rule: Rule = "default",
    exhaustive: bool = False,
    batch: int = 1,
    progress: Callable[[Step], None] | None = None,
    transcript: Sequence[Step] = (),
    references: Sequence[nn.Module | Suspect] = (),
    premise: Premise = ASSUMED,
) -> Verdict:
    """Ask a suspect and say who leaked it.

    >>> ring = Keyring.generate(clients=["alice", "bob"], classes=10, input_shape=(1, 8, 8))
    >>> trace(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), ring).clients    # nothing to do with either
    ()

    Parameters
    ----------
    suspect : a module or a function of a batch of inputs, which is fed what the keyring's source prepares, or anything
        that answers raw questions.
    false_accusation : bound on the probability of accusing anybody innocent, over the whole federation.
    budget : the most queries to spend, those of `transcript` included.
    rule : "paper" for the arg-max of the clients' accuracies, which always accuses somebody and has no bound.
    exhaustive : ask every question in every variant, to find accomplices whose share in the suspect is small.
    batch : how many questions to ask at a time. All of them count as queries, also those asked beyond the verdict.
    progress : called with each new query.
    transcript : an earlier trace's queries, which are not asked again. If the suspect fails, the `SuspectError` that
        ends the trace has all queries so far as `error.transcript`.
    references : for label answers, models of the same task known to be unmarked; 19 of them or more.
    premise : what is known of the marks that were issued: `vault.premise()`. Without it, it is assumed that marks were
        issued, and that a leaker's survives in half of the questions.
    """
    if budget is not None and budget < 1:
        raise SettingError(f"a budget of {budget} queries: at least one is needed")
    if batch < 1:
        raise SettingError(f"a batch of {batch} questions: at least one must be asked at a time")
    if not 0 < false_accusation < 1:
        raise SettingError(f"a false-accusation bound of {false_accusation}: it is a probability, such as 1e-6")
    if rule not in ("default", "paper"):
        raise SettingError(f"unknown rule {rule!r}: use 'default' or 'paper'")
    interview = Interview(suspect, keyring, budget=budget, batch=batch, progress=progress, transcript=transcript)
    try:
        if rule == "paper":
            verdict = by_accuracy(interview)
        elif keyring.assignment == "label":
            verdict = by_rank(interview, references)
        else:
            verdict = _by_evidence(interview, false_accusation, exhaustive, premise.surviving)
    except SuspectError as error:
        error.transcript = interview.transcript
        raise
    # A suspect without a mark clears nobody if no model ever had one.
    blind = verdict.finding == "nobody" and not premise.issued
    return replace(verdict, premise=premise, finding="inconclusive" if blind else verdict.finding)


def _by_evidence(interview: Interview, false_accusation: float, exhaustive: bool, surviving: float) -> Verdict:
    keyring = interview.keyring
    looks = weigh(
        interview.answers,
        codebook_of(keyring),
        keyring.chosen,
        variants=keyring.held_out_variants,
        clients=len(keyring.clients),
        classes=keyring.classes,
        false_accusation=false_accusation,
        surviving=surviving,
        exhaustive=exhaustive,
    )
    outcome, transcript = conclude(looks, surviving), interview.transcript
    e_values, p_values = (
        dict(zip(keyring.clients, values.tolist(), strict=True)) for values in (outcome.e_values, outcome.shown.p())
    )
    return Verdict(
        finding=outcome.finding,
        clients=tuple(keyring.clients[i] for i in outcome.accused),
        queries=len(transcript),
        false_accusation_bound=false_accusation,
        e_values=e_values,
        p_values=p_values,
        matches=dict(zip(keyring.clients, outcome.shown.matches.tolist(), strict=True)),
        answered=outcome.shown.answered,
        power=outcome.power,
        transcript=transcript,
        by_company=tuple(keyring.clients[i] for i in outcome.by_company),
    )
