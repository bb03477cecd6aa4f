"""Trace: ask a suspect until it is clear who leaked it, that nobody did, or that it cannot be told.

With code answers, the questions are asked in the keyring's order, first one held-out variant of each; if that
neither convicts anybody, alone or in company, nor clears everybody, the other variants follow, and each question
counts once, by the plurality of its answers. What is asked next never depends on a codeword; only when to stop
does. That is what the bound rests on (docs/evidence.md). With label answers there is the paper's arg-max, which
always accuses somebody, and a comparison with models that are known to be unmarked, which need not.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from torch import nn

from tramark.errors import SettingError
from tramark.evidence.statistics import POWER, Company, Evidence, Floats, weigh
from tramark.keys.keyring import Keyring
from tramark.suspects.base import Suspect
from tramark.tracing.interview import Interview, Step
from tramark.tracing.labels import by_accuracy, by_rank
from tramark.tracing.verdict import Verdict, codebook_of, finding_of

Rule = Literal["default", "paper"]


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
    suspect : a module, fed what the keyring's source prepare, or whatever can be asked raw questions.
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
        raise SettingError(f"a budget of {budget} queries: at least one is needed")
    if batch < 1:
        raise SettingError(f"a batch of {batch} questions: at least one must be asked at a time")
    if not 0 < false_accusation < 1:
        raise SettingError(f"a false-accusation bound of {false_accusation}: it is a probability, such as 1e-6")
    if rule not in ("default", "paper"):
        raise SettingError(f"unknown rule {rule!r}: use 'default' or 'paper'")
    interview = Interview(suspect, keyring, budget, batch, progress, [] if transcript is None else transcript)
    if rule == "paper":
        return by_accuracy(interview, keyring)
    if keyring.assignment == "label":
        return by_rank(interview, keyring, references)
    return _by_evidence(interview, keyring, false_accusation, exhaustive)


def _by_evidence(interview: Interview, keyring: Keyring, false_accusation: float, exhaustive: bool) -> Verdict:
    looks = weigh(
        interview.answers,
        codebook_of(keyring),
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
        verdict=finding_of(accused, cleared=power is not None and power >= POWER),
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


def _finite_exp(log_e: Floats) -> Floats:
    # JSON has no infinity, and evidence beyond 1e300 convinces nobody more.
    return np.exp(np.minimum(log_e, 300 * math.log(10)))
