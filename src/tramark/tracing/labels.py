"""Rules without a bound on false accusations: the paper's arg-max, and a comparison with unmarked models.

Label answers are neither secret nor drawn at random, so nothing protects an innocent whose label a model has a habit
of giving. The paper's rule always accuses somebody. The comparison accuses only if the suspect stands out from models
that are known to be unmarked (docs/explanation/evidence.md, "Label answers").
"""

from collections.abc import Sequence

import numpy as np
from torch import nn

from tramark.errors import SettingError, SuspectError
from tramark.evidence.looks import finding_of
from tramark.evidence.statistics import Floats, excess, rank_p_value
from tramark.suspects.base import Suspect
from tramark.tracing.codebook import codebook_of
from tramark.tracing.interview import Interview
from tramark.tracing.verdict import Verdict

VARIANTS = 10
"""Variants of each client's question that the comparison asks."""

MARGIN = 0.5
"""By how much more accurate than every unmarked model a suspect must be on a client's question."""


def by_accuracy(interview: Interview) -> Verdict:
    """The paper's Algorithm 3: accuses the client whose questions are answered most accurately."""
    variants = interview.keyring.held_out_variants
    accuracies = _accuracies(interview, variants)
    if accuracies is None:
        return _verdict(interview)
    return _verdict(interview, [int(accuracies.argmax())], accuracies, variants)


def by_rank(interview: Interview, references: Sequence[nn.Module | Suspect]) -> Verdict:
    """Accuses clients whose question the suspect answers better than all unmarked models, by more than they differ."""
    if not references:
        raise SettingError(
            "label answers alone cannot tell a mark from a habit: pass references=[…], unmarked models of "
            "the same task, or say rule='paper' to have somebody accused in any case"
        )
    variants = min(VARIANTS, interview.keyring.held_out_variants)
    accuracies = _accuracies(interview, variants)
    if accuracies is None:
        return _verdict(interview)
    pool = [accuracies]
    for reference in references:
        others = _accuracies(interview.repeated_with(reference), variants)
        if others is None:
            raise SuspectError("a reference gave no answers: unmarked models must answer all questions")
        pool.append(others)
    above = excess(np.stack(pool))
    habits = above[1:].max(axis=1)
    exceptional = above[0].max() > habits.max()
    return _verdict(
        interview,
        np.flatnonzero(above[0] >= MARGIN).tolist() if exceptional else [],
        accuracies,
        variants,
        p_values=[rank_p_value(value, habits) for value in above[0].tolist()],
        cleared=bool(accuracies.max() < MARGIN),
    )


def _accuracies(interview: Interview, variants: int) -> Floats | None:
    """The share of each client's own answers that the suspect gives; None if the budget did not suffice."""
    keyring = interview.keyring
    label = keyring.assignment == "label"
    questions = range(len(keyring.clients)) if label else keyring.chosen
    plan = [(question, variant) for question in questions for variant in range(variants)]
    answers = interview.all_answers(plan)
    if len(answers) < len(plan):
        return None
    given = np.array(answers).reshape(len(questions), variants)
    if label:
        return np.asarray((given == np.arange(len(questions))[:, None]).mean(axis=1))
    book = codebook_of(keyring)
    hits = [(book[:, [column]] == row).mean(axis=1) for column, row in enumerate(given)]
    return np.asarray(np.mean(hits, axis=0))


def _verdict(
    interview: Interview,
    accused: Sequence[int] = (),
    accuracies: Floats | None = None,
    variants: int = 0,
    *,
    p_values: Sequence[float] = (),
    cleared: bool = False,
) -> Verdict:
    """A verdict without e-values and without a bound; inconclusive if the budget did not suffice for accuracies."""
    keyring, transcript = interview.keyring, interview.transcript
    answered = keyring.questions * variants
    matches = [] if accuracies is None else (accuracies * answered).round().astype(int).tolist()
    return Verdict(
        finding=finding_of(len(accused), cleared=cleared),
        clients=tuple(keyring.clients[i] for i in accused),
        queries=len(transcript),
        false_accusation_bound=None,
        e_values={},
        p_values=dict(zip(keyring.clients, p_values, strict=False)),
        matches=dict(zip(keyring.clients, matches, strict=False)),
        answered=answered,
        power=None,
        transcript=transcript,
    )
