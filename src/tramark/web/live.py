"""Everybody's e-values while a suspect is asked, one event for each answer, for a chart that grows.

It follows the trace and has no part in it: what is asked, and when it ends, is decided there. The auditor, who holds
the vault, sees everybody's figures; the suspect sees nothing of this.
"""

import math
from typing import Any

import numpy as np

from tramark.evidence.case import Case
from tramark.evidence.statistics import Floats, plurality, shares
from tramark.evidence.tally import NONE, Evidence
from tramark.keys.keyring import Keyring
from tramark.report.growth import LINES
from tramark.report.page import shown_input
from tramark.tracing.codebook import burned_rows, codebook_of
from tramark.tracing.interview import Step
from tramark.tracing.recorded import keyring_of

Event = dict[str, Any]


class Live:
    """Turns the steps of a trace by e-values into events."""

    def __init__(self, case: Case, keyring: Keyring) -> None:
        self.case, self.keyring = case, keyring_of(case, keyring)
        self.needed = math.log10(case.clients / case.false_accusation)
        self._book = codebook_of(self.keyring, case.order)
        self._columns = {question: column for column, question in enumerate(case.order)}
        self._burned = burned_rows(self.keyring, case.burned)
        self._begin_looks(scored=bool(case.asked and case.asked[0].scores))
        self._given: dict[int, list[int]] = {}
        self._count = 0

    def begin(self) -> Event:
        """What a chart must know before the first answer."""
        many = self.case.clients > LINES
        return {
            "event": "begin",
            "case": self.case.number,
            "needed": self.needed,
            "questions": len(self.case.order),
            "clients": [] if many else list(self.keyring.clients),
            "values": [] if many else self._rounded(self._values()),
        }

    def step(self, step: Step) -> Event:
        """Everybody's evidence after one more answer, and what was asked."""
        self._count += 1
        if not self._given:
            self._begin_looks(scored=step.scores is not None)
        given = self._given.setdefault(step.question, [])
        given.append(step.answer)
        if step.variant == 0:
            self._add(self._looks[0], step.question, step.answer)
        if len(given) == self.case.variants > 1:
            self._add(self._looks[1], step.question, plurality(given))
        values = self._values()
        leader = int(values.argmax())
        lines = [] if self.case.clients > LINES else self._rounded(values)
        return {
            "event": "step",
            "query": self._count,
            "answer": step.answer,
            "variant": step.variant,
            **shown_input(self.keyring.asked(step.question, step.variant)),
            "values": lines,
            "low": round(float(values.min()), 3),
            "high": round(float(values.max()), 3),
            "leader": self.keyring.clients[leader],
        }

    def _begin_looks(self, *, scored: bool) -> None:
        share, case = shares(scored=scored), self.case
        self._looks = [
            Evidence(case.clients, case.classes, false_accusation=case.false_accusation, share=part)
            for part in (share.single, share.plural)
        ]

    def _add(self, look: Evidence, question: int, answer: int) -> None:
        look.add(self._book[:, self._columns[question]], answer, self._burned.get(question, NONE))

    def _values(self) -> Floats:
        """log10 of everybody's largest e-value over the looks that have begun."""
        begun = [look for look in self._looks if look.answered] or self._looks[:1]
        return np.asarray(np.maximum.reduce([look.now() for look in begun]) / math.log(10))

    def _rounded(self, values: Floats) -> list[float]:
        return [round(value, 3) for value in values.tolist()]
