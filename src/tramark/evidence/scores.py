"""The evidence in a suspect's scores, where it gives them: training moves labels before it removes a mark.

What training does to a leaked model's scores is much alike for all questions: some labels gain, others lose. So other
labels win, but the client's answer still stands higher among a question's scores than elsewhere. Let z_q be the
suspect's log-probabilities for question q. Take from them the mean over labels and the mean over questions, divide by
the standard deviation of all, and call that g_q. Client i's e-value is

    e_i = mean over β of  Π_q  r · w_q(c_iq) ,    w_q = softmax(β g_q) .

An innocent's answers c_iq are uniform and independent of all that the suspect says, so each factor has mean
r · Σ w_q / r = 1 and e_i has mean 1: it reaches C with probability at most 1/C. As g_q depends on all questions,
this holds for one look at all of them, and not for a look after every answer. docs/explanation/evidence.md compares it
with labels alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from tramark.evidence.statistics import WITH_SCORES, Floats
from tramark.evidence.tally import NONE, Evidence

Scores = tuple[int, ...]
"""A question's scores as a case records them: for each label, the log-probability below the largest, in thousandths."""

SHARPNESS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The β, from a mark that hardly stands out of the noise to one that stands far above it."""

LOWEST = -1_000_000
"""The lowest score that is recorded."""


def recorded(rows: Floats, classes: int) -> list[Scores | None]:
    """Rows of a suspect's scores (logits, log-probabilities or probabilities) as a case records them.

    Scores of labels beyond the `classes` are left out. Rows that have fewer scores, or no finite one, are None.

    >>> recorded(np.array([[2.0, 1.0, 0.0]]), 3), recorded(np.array([[0.75, 0.25, 0.0]]), 2)
    ([(0, -1000, -2000)], [(0, -1099)])
    """
    if rows.ndim != 2 or rows.shape[1] < classes:
        return [None] * len(rows)
    rows = np.asarray(rows, dtype=np.float64)
    return [_recorded(row, classes) for row in rows]


def _recorded(row: Floats, classes: int) -> Scores | None:
    """A row of scores as a case records it. A label that has no score, or zero, counts as the lowest that has one."""
    if (row >= 0).all() and abs(row.sum() - 1) < 0.01:
        row = np.log(row, where=row > 0, out=np.full_like(row, -np.inf))
    row = row[:classes]
    given = row[np.isfinite(row)]
    if not len(given) or np.isnan(row).any():
        return None
    logs = np.where(np.isfinite(row), row, given.min())
    return tuple(int(score) for score in np.rint(1000 * (logs - logs.max())).clip(min=LOWEST))


def is_recorded(scores: Any, classes: int) -> bool:
    """Whether a value is a question's scores as `recorded` gives them."""
    return (
        type(scores) is tuple
        and len(scores) == classes
        and all(type(score) is int and LOWEST <= score <= 0 for score in scores)
    )


def told(rows: Floats, own: Sequence[int], classes: int, *, clients: int, false_accusation: float = 1e-6) -> float:
    """The evidence in the scores of some questions against the client whose answers are its `own`, a question.

    It is relative to what names one of the clients: with the inverse of it as many questions, they suffice.
    """
    look = Scored(1, classes, false_accusation=false_accusation)
    look.weigh(np.array([own]), rows.argmax(1).tolist(), recorded(rows, classes))
    needed = math.log(clients / (false_accusation * WITH_SCORES.scores))
    return float(look.now()[0]) / (needed * len(own))


def log_factors(scores: Sequence[Scores]) -> Floats:
    """The logarithms of r · w_q, for each β, question and label: they are an innocent's factors if that is its answer.

    >>> factors = np.exp(log_factors([(0, -3000, -3000), (-3000, 0, -3000)]))
    >>> factors.mean(axis=2).round(6).tolist() == np.ones((len(SHARPNESS), 2)).tolist()
    True
    """
    logs = log_softmax(np.array(scores, dtype=np.float64) / 1000, axis=1)
    logs -= logs.mean(axis=1, keepdims=True)
    logs -= logs.mean(axis=0, keepdims=True)
    spread = float(logs.std())
    even = logs / spread if spread > 1e-9 else np.zeros_like(logs)
    sharp = np.array(SHARPNESS)[:, None, None]
    return np.asarray(log_softmax(sharp * even, axis=2) + math.log(logs.shape[1]))


class Scored(Evidence):
    """The evidence against each of n clients from a suspect's scores for all questions.

    Here label 0 always wins, and the other labels tell:

    >>> look = Scored(clients=2, classes=3, false_accusation=0.01)
    >>> codewords = np.array([[1, 2] * 8, [0, 0] * 8])
    >>> look.weigh(codewords, [0, 0] * 8, [(0, -1000, -3000), (0, -3000, -1000)] * 8).accused
    [0]
    """

    def __init__(self, clients: int, classes: int, **options: Any) -> None:
        super().__init__(clients, classes, **options)
        self._log_ratios = np.zeros((len(SHARPNESS), len(self.matches)))

    def weigh(
        self,
        codewords: NDArray[Any],
        answers: Sequence[int],
        scores: Sequence[Scores | None],
        burned: Mapping[int, NDArray[np.intp]] | None = None,
    ) -> Self:
        """Count all questions at once: the suspect's `answers` and `scores` to the columns of the `codewords`.

        Questions without scores are left out. `burned` has by column the rows for which a question does not count.
        """
        scored = [column for column, row in enumerate(scores) if row is not None]
        if not scored:
            return self
        factors = log_factors([row for row in scores if row is not None])
        for place, column in enumerate(scored):
            rows = (burned or {}).get(column, NONE)
            self._take(codewords[:, column] == answers[column], rows)
            own = factors[:, place, codewords[:, column]]
            own[:, rows] = 0.0
            self._log_ratios += own
        self._accuse()
        return self

    def now(self) -> Floats:
        """Everybody's log e-value, scaled by the share."""
        return np.asarray(logsumexp(self._log_ratios, axis=0) - math.log(len(SHARPNESS) / self.share))
