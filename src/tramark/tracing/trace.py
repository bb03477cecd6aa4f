"""Trace: ask a suspect until it is clear whose mark it carries, that nobody's is found, or that it cannot be told.

With code answers, the questions are asked in a fixed order, first one held-out variant of each. If that accuses
nobody, neither by the labels nor by the scores, the other variants of a few questions follow, and of all questions if
they change any answer; each question counts once, by the plurality of its answers. If no client is accused, the
questions of the federation's own key follow. Until somebody is accused, what is asked, and for how long, depends on no
codeword (docs/explanation/evidence.md). `labels` has the rules without a bound. A trace with a vault is a case of it
(`casework`); a trace with a keyring alone leaves no record and no evidence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from torch import nn

from tramark.errors import SettingError, SuspectError
from tramark.evidence.case import HINTS, RULE, Suspected
from tramark.evidence.looks import MOST_LOG_E, conclude
from tramark.evidence.premise import ASSUMED, Premise
from tramark.keys.keyring import Keyring
from tramark.suspects.base import Suspect
from tramark.suspects.module import Function, suspect_of
from tramark.suspects.tried import Probed
from tramark.tracing.casework import Record, begin, steps_of
from tramark.tracing.interview import Interview, Step
from tramark.tracing.labels import by_accuracy, by_rank
from tramark.tracing.probing import as_recorded, doubt_of, fed_as, probe_suspect, record_of
from tramark.tracing.verdict import Ours, Verdict
from tramark.tracing.weighing import Plan, weigh_all
from tramark.vault.store import Vault

Rule = Literal["default", "paper"]


def trace(
    suspect: nn.Module | Suspect | Function,
    keys: Keyring | Vault,
    *,
    false_accusation: float = 1e-6,
    budget: int | None = None,
    rule: Rule = "default",
    exhaustive: bool = False,
    batch: int = 1,
    progress: Callable[[Step], None] | None = None,
    references: Sequence[nn.Module | Suspect] = (),
    premise: Premise | None = None,
    suspected: Suspected | None = None,
    case: int | None = None,
    probe: bool | Probed = True,
    on_probe: Callable[[Probed], None] | None = None,
) -> Verdict:
    """Ask a suspect and say whose mark it carries.

    >>> ring = Keyring.generate(clients=["alice", "bob"], classes=10, input_shape=(8,))
    >>> trace(nn.Linear(8, 10), ring).clients    # nothing to do with either
    ()

    Parameters
    ----------
    suspect : a module or a function of a batch of inputs, which is fed what the keyring's source prepares, or anything
        that answers raw questions.
    keys : a vault, in which the trace becomes a case; or a keyring, for a verdict without record and evidence.
    false_accusation : bound on the probability of accusing anybody innocent, over the whole federation.
    budget : the most queries to spend, those of an interrupted case included.
    rule : "paper" for the arg-max of the clients' accuracies, which always accuses somebody and has no bound.
    exhaustive : ask every question in every variant, to find accomplices whose share in the suspect is small.
    batch : how many questions to ask at a time. All of them count as queries, also those asked beyond the verdict.
    progress : called with each new query.
    references : for label answers, models of the same task known to be unmarked; 19 of them or more.
    premise : what is known of the marks that were issued. By default what the vault knows; without one, it is assumed
        that marks were issued, and that a leaker's survives in half of the questions.
    suspected : what to record of the suspect, such as `suspected_at("model.onnx")`; by default the URL of a server, or
        the digest of a module. Say "address" as the kind of whatever lets somebody else see the questions.
    case : the number of an interrupted case, which goes on. The suspect and how it is fed and read must be the same.
    probe : with a vault, find out by public inputs how the suspect is fed and read, before the first question. What its
        conventions state stands; where they state nothing, what the probe proposes is used. A suspect that is probably
        fed wrongly does not end in "nobody". Or what such a probe of this suspect found already.
    on_probe : called with what the probe found.
    """
    if budget is not None and budget < 1:
        raise SettingError(f"a budget of {budget} queries: at least one is needed")
    if batch < 1:
        raise SettingError(f"a batch of {batch} questions: at least one must be asked at a time")
    if not 0 < false_accusation < 1:
        raise SettingError(f"a false-accusation bound of {false_accusation}: it is a probability, such as 1e-6")
    if rule not in ("default", "paper"):
        raise SettingError(f"unknown rule {rule!r}: use 'default' or 'paper'")

    def judged(keyring: Keyring, premise: Premise, record: Record | None = None) -> Verdict:
        interview = Interview(
            suspect,
            keyring,
            budget=budget,
            batch=batch,
            progress=progress,
            sending=record.sending if record else None,
            keep=record.keep if record else None,
            transcript=steps_of(record.case) if record else (),
        )
        plan = Plan.of(record.case if record else keyring)
        try:
            if rule == "paper":
                verdict = by_accuracy(interview)
            elif keyring.assignment == "label":
                verdict = by_rank(interview, references)
            else:
                verdict = by_evidence(interview, plan, false_accusation, exhaustive, premise.surviving)
        except SuspectError as error:
            error.transcript, error.case = interview.transcript, record.case.number if record else None
            raise
        # A suspect without a mark clears nobody if no model ever had one, or if it was fed wrongly.
        doubt = doubt_of(record.case.probe if record else None, [step.answer for step in verdict.transcript])
        blind = verdict.finding == "nobody" and (not premise.issued or doubt is not None)
        finding = "inconclusive" if blind else verdict.finding
        return replace(verdict, premise=premise, finding=finding, doubt=doubt if finding == "inconclusive" else None)

    if isinstance(keys, Keyring):
        if case is not None:
            raise SettingError(f"case {case} is a vault's: a keyring alone has no cases")
        return judged(keys, premise or ASSUMED)
    keyring = keys.keyring
    # A rule that cannot work must not open a case.
    if keyring.assignment == "label" and rule == "default" and not references:
        by_rank(Interview(suspect, keyring), references)
    named = "paper" if rule == "paper" else "label answers" if keyring.assignment == "label" else RULE
    assert named in (RULE, *HINTS)
    suspect = suspect_of(suspect, keyring.source.prepare)
    found = probe if isinstance(probe, Probed) else None
    if probe is True and case is None:
        found = probe_suspect(suspect, keys, budget=budget)
    if found is not None and case is None:
        suspect = fed_as(suspect, found.conventions)
        if on_probe is not None:
            on_probe(found)
    elif case is not None:
        suspect = as_recorded(suspect, keys.cases.get(case))
    with keys.cases.casework() as work:
        record = begin(
            keys,
            work,
            suspect,
            number=case,
            probe=record_of(found),
            rule=named,
            false_accusation=false_accusation,
            suspected=suspected,
        )
        try:
            verdict = judged(keyring, premise or keys.premise(), record)
        except BaseException:
            record.flush()
            raise
        restored = tuple(entry["time"] for entry in keys.log() if entry["event"] == "restored")
        return replace(verdict, case=record.close(verdict), simulated=keys.simulated, restored=restored)


def by_evidence(
    interview: Interview, plan: Plan, false_accusation: float, exhaustive: bool, surviving: float
) -> Verdict:
    """The verdict by e-values."""
    keyring = interview.keyring
    looks = weigh_all(
        interview.answers,
        keyring,
        plan,
        false_accusation=false_accusation,
        exhaustive=exhaustive,
        scores=interview.scores,
    )
    outcome, transcript = conclude(looks.clients, surviving, looks.federation), interview.transcript
    ours = outcome.federation
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
        by_scores=tuple(keyring.clients[i] for i in outcome.by_scores),
        not_cleared=tuple(keyring.clients[i] for i in outcome.not_cleared),
        federation=None
        if ours is None
        else Ours(
            bool(ours.accused),
            math.exp(min(float(ours.log_e()[0]), MOST_LOG_E)),
            float(ours.p()[0]),
            int(ours.matches[0]),
            ours.answered,
        ),
    )
