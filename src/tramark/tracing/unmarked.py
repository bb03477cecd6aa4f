"""Ask an unmarked model what an annex says the suspect was asked: a check against questions that were made to fit.

An operator who knows a client's answers could make questions that any model of the task answers so, and then accuse the
client of whatever model he likes. A model that no client's mark was ever written into must not answer as the accused
does, so an expert asks one. If it does, the questions were made to fit, or the base knows the accused's answers.
"""

from typing import NamedTuple

import numpy as np
import torch

from tramark.evidence.annex import Annex
from tramark.evidence.statistics import p_values
from tramark.suspects.base import Suspect

DOUBT = 1e-3
"""An unmarked model that answers like the accused with a smaller p-value than this casts doubt on the accusation."""


class Likeness(NamedTuple):
    """How an unmarked model answers the questions of an accused client: its matches, and their p-value."""

    matches: int
    answered: int
    p_value: float

    @property
    def doubtful(self) -> bool:
        """Whether the model answers like the accused by more than chance."""
        return self.p_value < DOUBT


def ask_unmarked(annex: Annex, model: Suspect) -> dict[str, Likeness]:
    """By accused client, how an unmarked model answers the questions that count."""
    queries = [query for query in annex.inputs if query[1] == 0]
    raw = [np.frombuffer(annex.inputs[query], annex.dtype).reshape(annex.shape) for query in queries]
    labels = model.ask(torch.from_numpy(np.stack(raw))).labels.tolist()
    said = {question: label for (question, _), label in zip(queries, labels, strict=True)}
    found = {}
    for client, answers in annex.accused.items():
        given = [question for question in answers if 0 <= said[question] < annex.case.classes]
        matches = sum(said[question] == answers[question] for question in given)
        found[client] = Likeness(matches, len(given), float(p_values(len(given), annex.case.classes)[matches]))
    return found
