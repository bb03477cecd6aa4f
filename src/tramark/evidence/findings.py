"""What checked evidence shows, and how to say it in words: what is proven, and what it cannot prove."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from tramark.evidence.commitment import Commitment, sha256, signers
from tramark.evidence.looks import Finding
from tramark.evidence.premise import ASSUMED, Premise
from tramark.evidence.published import choice_of, made_by, utc

AT_MOST = 1e-6
"""The largest bound on false accusations at which an accusation is taken as proven, unless the reader says so."""


@dataclass(frozen=True)
class Findings:
    """What a statement with its annex, or an old bundle, shows, as checked.

    Parameters
    ----------
    finding, clients : "client" or "several" if `clients` are accused, "federation" if the suspect comes from it but no
        client can be named, "nobody", or "inconclusive".
    suspect, notes, time : as the signer describes them.
    vault, public_key : whose evidence it is; compare `fingerprint` with one that came another way.
    federation, classes : the number n of clients and r of labels.
    false_accusation_bound, needed : ε, and the e-value at which a client is accused: the number of tests over ε.
    queries, answered : inputs asked, and questions that got an answer.
    matches, e_values, p_values : of the accused alone, or of the federation's own key, from the opened answers.
    proven, unproven : in words, what was checked, and what no bundle can show.
    premise : if nobody is accused, what the signer knew or assumed of the marks that were issued.
    lacking : in words, what the reader would have to be shown for the finding to be proven; empty if it is.
    case, spent : the case's number in the vault, and the error spent over the vault's life; None for old bundles.
    signers : the public keys (hex) of all who signed.
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
    lacking: tuple[str, ...] = ()
    case: int | None = None
    spent: float | None = None
    signers: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the finding is proven to the reader, with what the reader gave."""
        return not self.lacking

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


def same_key(given: str, public_key: str) -> bool:
    """Whether a public key (hex) is the one that was given, in hex or by its fingerprint.

    >>> same_key("66687AAD f862bd776c8fc18b8e9f8e2008971485", "00" * 32)
    True
    """
    word = "".join(given.split()).lower()
    return word in (public_key, fingerprint(public_key).replace(" ", ""))


def shown(name: str) -> str:
    """A name as a terminal may show it: in quotes, and with escapes, unless it is of letters, digits and a few signs.

    >>> shown("client-3"), shown("x\\nproven:")
    ('client-3', "'x\\\\nproven:'")
    """
    return name if name and all(c.isascii() and (c.isalnum() or c in "-_.@:/") for c in name) else repr(name)


def too_weak(accused: Sequence[str], bound: float, at_most: float) -> Iterator[str]:
    """What lacks if nobody is accused, or if the bound is larger than the reader takes for proof."""
    if not accused:
        yield "That nobody is to be accused: to show it, everybody's answers would have to be opened."
    elif bound > at_most:
        yield f"The accusation, at the error that you allow: its bound is {bound:g}, and {at_most:g} is wanted."


def left_out(everybody: int, clients: int) -> str:
    """What lacks if the evidence does not suffice with the clients that joined since then."""
    return (
        f"That no more than {clients} clients had joined when the case was opened: with all {everybody} of the "
        "published commitments, the evidence does not suffice. Give the commitment.json that was published before that."
    )


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
