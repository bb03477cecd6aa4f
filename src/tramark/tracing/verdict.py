"""The verdict: what a trace found, and the evidence for it. It is for the auditor: it has everybody's figures."""

from dataclasses import asdict, dataclass, field
from typing import Any

from tramark.evidence.case import Case
from tramark.evidence.looks import Finding, Query
from tramark.evidence.premise import ASSUMED, Premise
from tramark.evidence.scores import Scores
from tramark.tracing.interview import Step


@dataclass(frozen=True)
class Ours:
    """The evidence that a suspect comes from the federation: `named` if it suffices.

    `e_value`, `p_value`, `matches` and `answered` are those of the federation's own key.
    """

    named: bool
    e_value: float
    p_value: float
    matches: int
    answered: int


@dataclass(frozen=True)
class Verdict:
    """Whose mark the suspect carries, or that nobody's was found, and the evidence for it.

    Parameters
    ----------
    finding : "client" or "several" if `clients` are accused, "federation" if the suspect comes from the federation but
        no client can be named, "nobody", or "inconclusive".
    false_accusation_bound : on the probability that anybody innocent is accused; None if the rule has none.
    e_values : everybody's evidence; at tests / bound a client is accused, where there are as many tests as clients, and
        one more if the federation has a key of its own. For the accused, as it stood then.
    p_values : P(an innocent matches as often), as if the number of answers had been fixed beforehand.
    matches, answered : everybody's matches among the questions that got an answer.
    power : if nobody is accused, how surely a leaker would be whose mark survives as the premise has it.
    transcript : every query, in the order of asking.
    by_company : clients accused by the company look alone. To show their guilt takes everybody's codewords.
    by_scores : clients accused by the suspect's scores, while its labels alone do not suffice.
    premise : what was known, or assumed, of the marks that were issued.
    not_cleared : if the finding is "nobody", clients of whom too many questions are burned to clear them.
    case : the record in the vault; None for a trace with a keyring alone.
    federation : the evidence from the federation's own key; None if that was not asked about.
    simulated : whether the vault is a simulation's, whose secret follows from the seed.
    restored : when the vault was restored from backups (ISO 8601).
    doubt : if nobody is accused, why the suspect is probably fed or read wrongly; None if nothing speaks for that.
    """

    finding: Finding
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
    by_scores: tuple[str, ...] = ()
    premise: Premise = ASSUMED
    not_cleared: tuple[str, ...] = ()
    case: Case | None = field(default=None, repr=False)
    federation: Ours | None = None
    simulated: bool = False
    restored: tuple[str, ...] = ()
    doubt: str | None = None

    @property
    def scores(self) -> dict[Query, Scores]:
        """The suspect's scores by query, where it gave any."""
        return {step[:2]: step.scores for step in self.transcript if step.scores is not None}

    def to_dict(self) -> dict[str, Any]:
        """The main results as plain values."""
        return {
            "finding": self.finding,
            "clients": list(self.clients),
            "by_scores": list(self.by_scores),
            "queries": self.queries,
            "false_accusation_bound": self.false_accusation_bound,
            "e_values": self.e_values,
            "p_values": self.p_values,
            "power": self.power,
            "premise": asdict(self.premise),
            "not_cleared": list(self.not_cleared),
            "federation": None if self.federation is None else asdict(self.federation),
            "case": None if self.case is None else self.case.number,
            "spent": None if self.case is None else self.case.spent,
            "doubt": self.doubt,
            "probe": None if self.case is None else self.case.probe,
            "confinement": None if self.case is None or self.case.confinement is None else list(self.case.confinement),
            "conventions": None if self.case is None else dict(self.case.conventions),
            "identical": [] if self.case is None else [asdict(one) for one in self.case.identical],
            "simulated": self.simulated,
            "restored": list(self.restored),
        }
