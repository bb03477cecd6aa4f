"""What a checked bundle shows, and how to say it in words: what is proven, and what no bundle can prove."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from typing import Any

from tramark.evidence.commitment import Commitment, sha256, signers
from tramark.evidence.looks import Finding
from tramark.evidence.premise import ASSUMED, Premise


@dataclass(frozen=True)
class Findings:
    """What a bundle shows, as checked.

    Parameters
    ----------
    finding, clients : "client" or "several" if `clients` are accused, "nobody", or "inconclusive".
    suspect, notes, time : as the signer describes them.
    vault, public_key : whose evidence it is; compare `fingerprint` with one that came another way.
    federation, classes : the number n of clients and r of labels.
    false_accusation_bound, needed : ε, and the e-value n/ε at which a client is accused.
    queries, answered : inputs asked, and questions that got an answer.
    matches, e_values, p_values : of the accused alone, computed from the opened answers.
    proven, unproven : in words, what was checked, and what no bundle can show.
    premise : if nobody is accused, what the signer knew or assumed of the marks that were issued.
    """

    finding: Finding
    clients: tuple[str, ...]
    suspect: str
    notes: str
    time: str
    vault: str
    public_key: str
    federation: int
    classes: int
    false_accusation_bound: float
    needed: float
    queries: int
    answered: int
    matches: dict[str, int]
    e_values: dict[str, float]
    p_values: dict[str, float]
    proven: tuple[str, ...]
    unproven: tuple[str, ...]
    premise: Premise = ASSUMED

    @property
    def fingerprint(self) -> str:
        """The public key, short enough to be read out."""
        return fingerprint(self.public_key)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self) | {"fingerprint": self.fingerprint}


def fingerprint(public_key: str) -> str:
    """160 bits of the hash of a public key (hex), in groups of four.

    >>> fingerprint("00" * 32)
    '6668 7aad f862 bd77 6c8f c18b 8e9f 8e20 0897 1485'
    """
    digest = sha256(bytes.fromhex(public_key)).hex()[:40]
    return " ".join(digest[i : i + 4] for i in range(0, 40, 4))


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


def choice_of(links: Sequence[Commitment]) -> Commitment:
    """The commitment that chose the questions in use, or retouched them."""
    chose = links[-1 - sum(1 for _ in takewhile(lambda link: link.chosen == links[-1].chosen, links[-2::-1]))]
    return max(chose, made_by(links), key=lambda link: link.number)


def made_by(links: Sequence[Commitment]) -> Commitment:
    """The commitment that has the questions in use as they are asked: the last one with any questions."""
    return next(link for link in reversed(links) if link.questions[1])


def proven(
    plain: Mapping[str, Any], links: Sequence[Commitment], *, given: str | None, published: Sequence[Commitment] | None
) -> Iterator[str]:
    """What was checked, in sentences. `given` is the key, `published` the commitments that the reader knew."""
    first, keys = links[0], signers(links)
    yield f"The bundle is as it was signed, by the key that signed the commitments: {fingerprint(keys[-1])}."
    for old, new in pairwise(keys):
        handed = next(link for link in links if link.public_key == new)
        yield (
            f"The key {fingerprint(old)} handed over to {fingerprint(new)} in the commitment dated "
            f"{utc(handed.time)}, which both signed."
        )
    if given:
        which = "This key" if given == keys[-1] else f"The key {fingerprint(given)}"
        yield f"{which} is the one that you gave."
    if published:
        agree = min(len(links), len(published))
        yield f"The commitments, {agree} of {len(links)}, are those that were published."
    retouched = "and retouched " if made_by(links).number > 1 else ""
    yield (
        f"The {len(plain['transcript'])} inputs that were asked are of the {first.questions[1]} questions in the "
        f"commitment dated {utc(first.time)}, as chosen {retouched}in the one dated {utc(choice_of(links).time)}, and "
        "were asked in the order of the rule, none left out."
    )
    for proof in plain["answers"]:
        link = links[proof["commitment"] - 1]
        yield f"The answers shown of {proof['client']!r} are those in the commitment dated {utc(link.time)}."


def unproven(
    plain: Mapping[str, Any],
    links: Sequence[Commitment],
    premise: Premise | None,
    *,
    given: str | None,
    published: Sequence[Commitment] | None,
) -> tuple[str, ...]:
    """What rests on the word of the vault's operator, or on something outside the bundle, in sentences.

    `premise` is that of a verdict that clears everybody.
    """
    open_points = []
    if links[0].simulated:
        open_points.append(
            "Anything against anybody: this is the vault of a simulation, and whoever knows its seed knows its secret."
        )
    if not given and not published:
        open_points.append(
            "Whose key it is: compare its fingerprint with one that came another way, or give the published commitment."
        )
    if not published:
        open_points.append("When the commitments were made: their times are the operator's word.")
    elif choice_of(links).number > len(published):
        open_points.append(
            "That these questions were chosen, and made what they are, before the suspect was asked: the commitment "
            "that did it is later than those that were published."
        )
    open_points.append(
        "That the suspect gave these answers, and that how to read its labels was settled beforehand: ask it again, "
        "all inputs are in the bundle."
    )
    if plain["answers"]:
        blind = ", and the questions chosen without a look at them" if choice_of(links).number > 1 else ""
        open_points += [
            f"That the answers were drawn at random{blind}: an expert whom both sides trust can see it in the vault.",
            "That no more clients would have to be accused, and that no other trace of this suspect was kept back.",
            "Who made the suspect: it knows the accused's answers, which are in the accused's model and in the vault.",
        ]
    else:
        open_points.append("That nobody's answers match: to show it, everybody's answers would have to be opened.")
    if premise is not None:
        open_points.append(
            f"That marked models were issued, and that a leaker's mark survives {premise.words}: a fainter one may go "
            "unseen."
        )
    return tuple(open_points)
