"""The record of a case: one trace of one suspect with a vault, from before the first question to the verdict.

Everything that the verdict rests on is fixed here when the case is opened: the suspect, how it is fed and read, the
order of the questions, which of them no longer count for whom, the error that the case spends. Answers are added as
they come, each with its time. The vault keeps the record (`vault.cases`); statements and annexes are made from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from tramark.evidence.federation import FEDERATION, tests
from tramark.evidence.looks import Finding, Query
from tramark.evidence.premise import Premise
from tramark.evidence.scores import Scores

RULE = "e-values 4"
"""The rule by which answers are weighed, with the bound of docs/explanation/evidence.md."""

RULES = (RULE, "e-values 3")
"""Rules whose cases can be proven. The earlier one is the same for a suspect that gives no scores, and kept none."""

HINTS = ("label answers", "paper")
"""Rules without a bound: they spend no error, and there is no evidence to hand over."""


class Asked(NamedTuple):
    """One query and its answer: the question's number in the pool, its held-out variant, the label, and when (UTC).

    `scores` are those of the answer, if the suspect gave any.
    """

    question: int
    variant: int
    answer: int
    time: str
    scores: Scores | None = None

    def to_list(self) -> list[Any]:
        """The values; those of an answer without scores end with the time."""
        return list(self[:4]) if self.scores is None else [*self[:4], list(self.scores)]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> Self:
        """The answer that `to_list` wrote."""
        return cls(*values[:4], *(tuple(scores) for scores in values[4:]))


@dataclass(frozen=True)
class Suspected:
    """Who is suspected.

    >>> Suspected("address", "https://example.org/v2/models/digits").remote
    True

    Parameters
    ----------
    kind : what it is. Whoever runs an "address" sees what is asked.
    name : a file's or folder's name; a URL without password and query; the class of a module.
    sha256 : of the file, of a folder's files, or the `state_digest` of a module. None for an address.
    """

    kind: Literal["file", "folder", "address", "module"]
    name: str
    sha256: str | None = None

    @property
    def remote(self) -> bool:
        """Whether somebody else sees what it is asked."""
        return self.kind == "address"

    @property
    def words(self) -> str:
        """The suspect as reports name it."""
        return self.name if self.sha256 is None else f"{self.name} (SHA-256 {self.sha256})"


@dataclass(frozen=True)
class Identical:
    """A round in which a model was issued that the suspect equals bit by bit.

    Parameters
    ----------
    clients : who got it. If `everybody` of that round did, it accuses nobody.
    marked : whether it had a mark, as the log says; None if the log does not say it.
    """

    round: int
    clients: tuple[str, ...]
    everybody: bool
    marked: bool | None


@dataclass(frozen=True)
class Closed:
    """How a case ended.

    Parameters
    ----------
    clients, by_company : who is accused; those of them whom the company look alone accuses.
    not_cleared : if the finding is "nobody", clients of whom too few questions count to clear them.
    power : if nobody is accused, how surely a leaker would have been; it depends on no codeword.
    """

    time: str
    finding: Finding
    clients: tuple[str, ...]
    by_company: tuple[str, ...]
    premise: Premise
    not_cleared: tuple[str, ...] = ()
    power: float | None = None

    @property
    def named(self) -> tuple[str, ...]:
        """Whose marks were found: those of the accused or, if no client can be named, the federation's own."""
        return (FEDERATION,) if self.finding == "federation" else self.clients


@dataclass(frozen=True)
class Case:
    """One trace with a vault.

    Parameters
    ----------
    number : 1, 2, … in this vault.
    opened : when (ISO 8601, UTC).
    conventions : all that says how the suspect is fed and read, as plain values without fractions.
    false_accusation : the error that the case spends; zero for one of the `HINTS`.
    spent : the error spent over the life of the vault, with this case's.
    rule : how answers are weighed.
    commitment, head : digest of the newest commitment, and the log's number of entries and last hash, at the opening.
    clients, classes, variants : n, r, and the variants in which each question can be asked.
    order : the questions in the order in which they are asked.
    burned : by client, the questions that do not count for it, as of the opening; when a case goes on, questions that
        it had not asked yet and that burned meanwhile are added.
    asked : every query whose answer is kept, in the order of asking.
    sent : queries that a remote suspect was sent and whose answers are not kept.
    identical : models in the log that the suspect equals.
    common : the questions of the federation's own key, in the order in which those that are not burned are asked after
        the others. If there are any, the federation is one more test.
    probe : how the suspect is fed and read, as found by public inputs (`suspects.probe`); None if it was not probed.
    confinement : what kept a suspect from a file from doing harm; None if it was not noted.
    """

    number: int
    opened: str
    suspect: Suspected
    conventions: Mapping[str, Any]
    false_accusation: float
    spent: float
    rule: str
    commitment: str
    head: tuple[int, str]
    clients: int
    classes: int
    variants: int
    order: tuple[int, ...]
    burned: Mapping[str, tuple[int, ...]]
    asked: tuple[Asked, ...] = ()
    sent: tuple[tuple[int, int], ...] = ()
    identical: tuple[Identical, ...] = ()
    closed: Closed | None = None
    common: tuple[int, ...] = ()
    probe: Mapping[str, Any] | None = None
    confinement: tuple[str, ...] | None = None

    @property
    def questions(self) -> tuple[int, ...]:
        """The questions that the suspect was asked, in any variant."""
        return tuple(dict.fromkeys([*(one.question for one in self.asked), *(question for question, _ in self.sent)]))

    @property
    def scores(self) -> dict[Query, Scores]:
        """The scores of the queries whose answers have any."""
        return {(one.question, one.variant): one.scores for one in self.asked if one.scores is not None}

    @property
    def tests(self) -> int:
        """The number of tests that share the error."""
        return tests(self.clients, self.common)

    @property
    def ours(self) -> tuple[int, ...]:
        """The common questions that count."""
        burned = self.burned.get(FEDERATION, ())
        return tuple(question for question in self.common if question not in burned)

    def order_of(self, name: str) -> tuple[int, ...]:
        """The questions that a client is tested by, or the federation, in the order in which they are asked."""
        return self.common if name == FEDERATION else self.order

    def counted(self, name: str) -> tuple[int, ...]:
        """The questions that the suspect was asked and that count for a client, or for the federation."""
        own, burned = set(self.order_of(name)), self.burned.get(name, ())
        return tuple(question for question in self.questions if question in own and question not in burned)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values without fractions, for canonical JSON."""
        closed = self.closed
        # Missing in cases of earlier versions, whose text must stay what it was.
        later = {
            "common": list(self.common) or None,
            "probe": None if self.probe is None else dict(self.probe),
            "confinement": None if self.confinement is None else list(self.confinement),
        }
        return {
            **{name: value for name, value in vars(self).items() if name not in later},
            **{name: value for name, value in later.items() if value is not None},
            "suspect": dict(vars(self.suspect)),
            "conventions": dict(self.conventions),
            "false_accusation": repr(self.false_accusation),
            "spent": repr(self.spent),
            "head": list(self.head),
            "order": list(self.order),
            "burned": {client: list(questions) for client, questions in self.burned.items()},
            "asked": [asked.to_list() for asked in self.asked],
            "sent": [list(query) for query in self.sent],
            "identical": [vars(one) | {"clients": list(one.clients)} for one in self.identical],
            "closed": closed
            and {
                **vars(closed),
                "clients": list(closed.clients),
                "by_company": list(closed.by_company),
                "not_cleared": list(closed.not_cleared),
                "premise": closed.premise.to_dict(),
                "power": None if closed.power is None else repr(closed.power),
            },
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The case that `to_dict` wrote."""
        closed = plain["closed"]
        return cls(
            **{
                **plain,
                "suspect": Suspected(**plain["suspect"]),
                "false_accusation": float(plain["false_accusation"]),
                "spent": float(plain["spent"]),
                "head": tuple(plain["head"]),
                "order": tuple(plain["order"]),
                "common": tuple(plain.get("common", ())),
                "confinement": tuple(plain["confinement"]) if "confinement" in plain else None,
                "burned": {client: tuple(questions) for client, questions in plain["burned"].items()},
                "asked": tuple(map(Asked.from_list, plain["asked"])),
                "sent": tuple((question, variant) for question, variant in plain["sent"]),
                "identical": tuple(
                    Identical(**{**one, "clients": tuple(one["clients"])}) for one in plain["identical"]
                ),
                "closed": closed
                and Closed(
                    **{
                        **closed,
                        "clients": tuple(closed["clients"]),
                        "by_company": tuple(closed["by_company"]),
                        "not_cleared": tuple(closed["not_cleared"]),
                        "premise": Premise.from_dict(closed["premise"]),
                        "power": None if closed["power"] is None else float(closed["power"]),
                    }
                ),
            }
        )
