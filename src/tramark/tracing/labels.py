"""tracing.labels"""

from collections.abc import Sequence

import numpy as np
from torch import nn

from tramark.errors import SettingError, SuspectError
from tramark.evidence.statistics import Floats, excess, rank_p_value
from tramark.keys.keyring import Keyring
from tramark.suspects.base import Suspect
from tramark.suspects.module import ModuleSuspect
from tramark.tracing.interview import Interview
from tramark.tracing.verdict import Verdict, codebook_of, finding_of

# Label answers: variants of a client's question that are asked, and how much more accurate on them than every
# unmarked model a suspect must be.
VARIANTS = 10


MARGIN = 0.5


def by_accuracy(interview: Interview, keyring: Keyring) -> Verdict:
    """The paper's Algorithm 3: whoever's questions are answered most accurately."""
    variants = keyring.held_out_variants
    accuracies = _accuracies(interview, keyring, variants)
    if accuracies is None:
        return _unbounded(interview, keyring)
    return _unbounded(interview, keyring, [int(accuracies.argmax())], accuracies, variants)


def by_rank(interview: Interview, keyring: Keyring, references: Sequence[nn.Module | Suspect]) -> Verdict:
    """Whose question the suspect answers better than all unmarked models, by more than those ever differ."""
    if not references:
        raise SettingError(
            "label answers alone cannot tell a mark from a habit: pass references=[…], unmarked models of "
            "the same task, or say rule='paper' to have somebody accused in any case"
        )
    variants = min(VARIANTS, keyring.held_out_variants)
    accuracies = _accuracies(interview, keyring, variants)
    if accuracies is None:
        return _unbounded(interview, keyring)
    pool = [accuracies]
    for reference in references:
        other = Interview(reference, keyring, None, interview.batch, None, [])
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


def _accuracies(interview: Interview, keyring: Keyring, variants: int) -> Floats | None:
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
    book = codebook_of(keyring)
    hits = [(book[:, [column]] == row).mean(axis=1) for column, row in enumerate(given)]
    return np.asarray(np.mean(hits, axis=0))


def _unbounded(
    interview: Interview,
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
        verdict=finding_of(names, cleared=cleared),
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
