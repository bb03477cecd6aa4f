"""Published commitments: what they prove about the chain of commitments that evidence rests on.

Whoever checks evidence must have the commitments from elsewhere than from the evidence. Those that settled the
questions and the accused's answers must be among them; clients that joined since then count in the bound. Times in
commitments are the operator's word, but they must be in order; time stamps of an authority (`timestamp`) prove them.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise, takewhile

from tramark.errors import BadProof, Unreadable
from tramark.evidence.commitment import Commitment, verify_chain


def read_published(text: bytes) -> list[Commitment]:
    """The commitments of a vault's `commitment.json`; anything else, evidence too, raises `BadProof`."""
    try:
        plain = json.loads(text)
        if plain.keys() != {"commitments"}:
            # Evidence has commitments, too. It must not vouch for itself.
            raise ValueError
        return [Commitment.from_dict(item) for item in plain["commitments"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Unreadable("this is not a published commitment: it should be a vault's commitment.json") from None


def check_published(links: Sequence[Commitment], published: Sequence[Commitment]) -> None:
    """Raise `BadProof` unless the published commitments are one chain that agrees with the evidence's."""
    verify_chain(published)
    if any(ours != theirs for ours, theirs in zip(links, published, strict=False)):
        raise BadProof("the commitments in the evidence are not those that were published")


def lacking(
    links: Sequence[Commitment], published: Sequence[Commitment] | None, joined: Iterable[int]
) -> Iterator[str]:
    """What publication does not prove, in sentences. `joined` are the commitments with which the accused joined."""
    if published is None:
        yield "That the commitments are those of the federation, and older than the trace: give those it published."
        return
    needed = max((choice_of(links).number, *joined))
    if needed > len(published):
        yield (
            f"That questions and answers were settled beforehand: commitment {needed}, which settled them, is not "
            f"among the {len(published)} that you gave."
        )
    later = published[len(links) :]
    if any(link.questions[1] or not _same(link, links[-1]) for link in later):
        yield (
            "That these questions were in use when the suspect was asked: the published commitments have others since "
            "then. Give the commitment.json that was published before the case was opened."
        )


def federation(links: Sequence[Commitment], published: Sequence[Commitment] | None) -> int:
    """The number n of clients in the bound: all who ever joined, as far as the longer chain knows."""
    return max(sum(chain[-1].clients) for chain in (links, published or links))


def check_order(links: Sequence[Commitment], *times: str) -> None:
    """Raise `BadProof` unless the commitments' times, and then these, are in order, to the second."""
    moments = [time_of(time).replace(microsecond=0) for time in (*(link.time for link in links), *times)]
    if any(later < earlier for earlier, later in pairwise(moments)):
        raise BadProof("its times are out of order: nothing can be older than the commitments that it rests on")


def choice_of(links: Sequence[Commitment]) -> Commitment:
    """The commitment that chose the questions in use, or retouched them."""
    chose = links[-1 - sum(1 for _ in takewhile(lambda link: _same(link, links[-1]), links[-2::-1]))]
    return max(chose, made_by(links), key=lambda link: link.number)


def _same(one: Commitment, other: Commitment) -> bool:
    """Whether two commitments have the same questions in use."""
    return (one.chosen, one.common) == (other.chosen, other.common)


def made_by(links: Sequence[Commitment]) -> Commitment:
    """The commitment that has the questions in use as they are asked: the last one with any questions."""
    return next(link for link in reversed(links) if link.questions[1])


def utc(time: str) -> str:
    """A time in ISO 8601 as people read it.

    >>> utc("2026-03-01T13:00:00.250+01:00")
    '2026-03-01 12:00:00 UTC'
    """
    return f"{time_of(time).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def time_of(text: str) -> datetime:
    """A time in ISO 8601, which must have a time zone."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return time
