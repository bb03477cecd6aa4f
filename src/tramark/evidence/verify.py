"""Evidence bundles: what a verdict rests on, signed, for an opponent to check without the vault.

A bundle has the transcript with every input that was asked, the chain of commitments, and openings which show
that these inputs, and the accused clients' answers to them, are what was committed to. It opens nothing else:
no question that was not asked and no answer of anybody who is not accused, unless somebody is accused by the
company, which takes everybody's answers. `verify_bundle` follows all of it and weighs the evidence again from what
was opened; `Findings` say what that proves and what it cannot prove. A bundle is one canonical JSON text, so that no
byte of it can change unnoticed. docs/report.md has its fields.
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain, islice, takewhile
from typing import Any

import numpy as np

from tramark.errors import BadProof
from tramark.evidence import commitment as commitments
from tramark.evidence.commitment import Commitment, canonical
from tramark.evidence.statistics import NO_ANSWER, Finding, Place, weigh

FORMAT = "tramark evidence 1"


RULE = "e-values 2"


_FIELDS = {
    "format",
    "time",
    "suspect",
    "notes",
    "verdict",
    "parameters",
    "input",
    "transcript",
    "commitments",
    "questions",
    "answers",
    "signature",
}


_IN_COMPANY = ", if it counts who else was to give each answer"


# More than any keyring has; it keeps a forged number from filling the memory.
_MOST_VARIANTS = 2**16


@dataclass(frozen=True)
class Findings:
    """What a bundle shows, as checked.

    Parameters
    ----------
    verdict, clients : who is accused, or "nobody" or "inconclusive".
    suspect, notes, time : as the signer describes them.
    vault, public_key : whose evidence it is; compare `fingerprint` with one that came another way.
    federation, classes : the number n of clients and r of labels.
    false_accusation_bound, needed : ε, and the e-value n/ε at which a client is accused.
    queries, answered : inputs asked, and questions that got an answer.
    matches, e_values, p_values : of the accused alone, computed from what was opened.
    proven, unproven : in words, what was checked, and what no bundle can show.
    """

    verdict: Finding
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
    digest = commitments.sha256(bytes.fromhex(public_key)).hex()[:40]
    return " ".join(digest[i : i + 4] for i in range(0, 40, 4))


def utc(time: str) -> str:
    """A time in ISO 8601 as people read it.

    >>> utc("2026-03-01T13:00:00.250+01:00")
    '2026-03-01 12:00:00 UTC'
    """
    return f"{_time(time).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def read_published(text: bytes) -> list[Commitment]:
    """The commitments of a vault's `commitment.json`; anything else raises `BadProof`."""
    try:
        plain = json.loads(text)["commitments"]
        return [Commitment.from_dict(item) for item in plain]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadProof("this is not a published commitment: it should be a vault's commitment.json") from None


def verify_bundle(
    bundle: Mapping[str, Any] | bytes, *, public_key: str | None = None, published: Sequence[Commitment] | None = None
) -> Findings:
    """What a bundle proves; `BadProof` if anything in it is not as it must be. Needs no vault and no secret.

    Parameters
    ----------
    bundle : the bytes of its file, in which case not even a space may differ, or its values.
    public_key : the key (hex) that must have signed it, from a source other than the bundle.
    published : the commitments as they were published, with which those of the bundle must agree.
    """
    try:
        text = bundle if isinstance(bundle, bytes) else canonical(bundle)
        plain = json.loads(text)
        exact = canonical(plain) == text
    except (ValueError, TypeError, RecursionError):
        raise BadProof("this is not an evidence bundle: it is not JSON") from None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise BadProof(f"this is not an evidence bundle that this version knows: its format is not {FORMAT!r}")
    if not exact:
        raise BadProof("the bundle was changed: it is not the canonical text of what it says")
    try:
        return _verify(plain, public_key, published)
    except (TypeError, KeyError, IndexError, ValueError, AttributeError, ArithmeticError):
        raise BadProof("this is not a well-formed evidence bundle") from None


def _verify(plain: dict[str, Any], public_key: str | None, published: Sequence[Commitment] | None) -> Findings:
    if plain.keys() != _FIELDS:
        raise ValueError
    links = [Commitment.from_dict(item) for item in plain["commitments"]]
    commitments.verify_chain(links)
    first, federation, time = links[0], sum(links[-1].clients), _time(plain["time"])
    signed = canonical({name: value for name, value in plain.items() if name != "signature"})
    commitments.verify_signature(first.public_key, "evidence", signed, plain["signature"])
    if public_key is not None and public_key != first.public_key:
        raise BadProof("the bundle is signed with another key than the one given")
    if published is not None:
        _check_published(links, published, time)

    order, variants, bound = _parameters(plain["parameters"], links, federation)
    known = _transcript(plain, order, variants)
    _check_inputs(plain, links, variants)
    verdict, accused = _claim(plain["verdict"], len(known))
    answers = [commitments.verify_answers(proof, links) for proof in plain["answers"]]
    opened = [proof["client"] for proof in plain["answers"]]
    everybody = len(opened) == len(set(opened)) == federation and set(accused) <= set(opened)
    if opened != accused and not everybody:
        raise BadProof("the answers that are opened are not those of the accused, nor those of everybody")
    if any(shown.keys() != {question for question, _ in known} for shown in answers):
        raise BadProof("the answers that are opened are not those to the questions that were asked")

    # Without anybody accused there is still the number of answers to count: against one who never matches.
    codewords = np.array([[shown.get(question, NO_ANSWER) for question in order] for shown in answers or [{}]])
    looks = weigh(
        lambda plan: (known[place] for place in plan if place in known),
        codewords,
        order,
        variants=variants,
        clients=federation,
        classes=first.classes,
        false_accusation=bound,
        # When a trace stops depends on everybody; here is all that was asked, and an accusation is final.
        exhaustive=True,
    )
    reached = {opened[row] for look in looks for row in look.accused} if opened else set()
    if innocent := [client for client in accused if client not in reached]:
        raise BadProof(f"the evidence does not suffice to accuse {' and '.join(map(repr, innocent))}")
    look = max(reversed(looks), key=lambda look: (len(look.accused), look.answered))
    log_e = np.minimum(np.maximum.reduce([look.log_e() for look in looks]), 300 * math.log(10))
    rows = {client: opened.index(client) for client in accused}
    matches, e_values = look.matches.tolist(), np.exp(log_e).tolist()
    return Findings(
        verdict=verdict,
        clients=tuple(accused),
        suspect=_text(plain["suspect"]),
        notes=_text(plain["notes"]),
        time=plain["time"],
        vault=first.vault,
        public_key=first.public_key,
        federation=federation,
        classes=first.classes,
        false_accusation_bound=bound,
        needed=federation / bound,
        queries=len(known),
        answered=look.answered,
        matches={client: matches[row] for client, row in rows.items()},
        e_values={client: e_values[row] for client, row in rows.items()},
        p_values={client: look.p().tolist()[row] for client, row in rows.items()},
        proven=(
            *_proven(plain, links, given=public_key is not None, published=published),
            *(
                f"{client!r} was to answer {matches[row]} of {look.answered} questions as the suspect does. Its "
                f"e-value reached {e_values[row]:.3g}{_IN_COMPANY * everybody}, and {federation / bound:.3g} is needed "
                f"to accuse one of {federation} clients at a bound of {bound:g}."
                for client, row in rows.items()
            ),
        ),
        unproven=_unproven(plain, links, given=public_key is not None, published=published),
    )


def _parameters(plain: Mapping[str, Any], links: Sequence[Commitment], federation: int) -> tuple[list[int], int, float]:
    """The order of questions, the number of variants and the bound; the rest must be as committed."""
    first, order = links[0], list(links[-1].chosen)
    expected = {"rule": RULE, "clients": federation, "classes": first.classes}
    variants, text = _natural(plain["variants"]), plain["false_accusation_bound"]
    if plain != expected | {"variants": variants, "false_accusation_bound": text}:
        raise BadProof("the parameters are not those that were committed to")
    if first.assignment != "code" or first.classes < 2:
        raise BadProof("only code answers have a bound on false accusations that could be checked")
    bound = float(text)
    if repr(bound) != text or not 0 < bound < 1 or not 0 < variants <= _MOST_VARIANTS:
        raise ValueError
    return order, variants, bound


def _transcript(plain: Mapping[str, Any], order: Sequence[int], variants: int) -> dict[Place, int]:
    """The suspect's answers by (question, variant), which must be asked as the rule says, none left out."""
    steps = plain["transcript"]
    known = {(_natural(step["question"]), _natural(step["variant"])): step["answer"] for step in steps}
    if not known or any(type(answer) is not int or answer < NO_ANSWER for answer in known.values()):
        raise ValueError
    places = [(step["question"], step["variant"]) for step in steps]
    if places != list(islice(_plan(order, variants), len(places))):
        raise BadProof("what was asked is not what the rule says: the questions in order, then their other variants")
    return known


def _plan(order: Sequence[int], variants: int) -> Iterator[Place]:
    """All that a trace would ask, in its order."""
    again = ((question, variant) for question in order for variant in range(1, variants))
    return chain(((question, 0) for question in order), again)


def _check_inputs(plain: Mapping[str, Any], links: Sequence[Commitment], variants: int) -> None:
    """The inputs that were asked must be those of the commitment that made the questions what they are."""
    proof, (dtype, shape) = plain["questions"], (plain["input"]["dtype"], plain["input"]["shape"])
    committed = commitments.verify_questions(proof, links)
    firsts = {part["first"] for part in proof["questions"]}
    counts = {part["count"] for part in proof["questions"]}
    if proof["commitment"] != _made(links).number or len(firsts) > 1 or counts != {variants}:
        raise BadProof("the questions that are opened are not those of their commitment, in all their variants")
    if plain["input"].keys() != {"dtype", "shape"}:
        raise ValueError
    [held_out] = firsts
    digests = {}
    for step in plain["transcript"]:
        if step.keys() != {"question", "variant", "answer", "input"}:
            raise ValueError
        data = base64.b64decode(step["input"], validate=True)
        if base64.b64encode(data).decode() != step["input"]:
            raise ValueError
        place = step["question"], held_out + step["variant"]
        digests[place] = commitments.array_digest(dtype, [_natural(length) for length in shape], data)
    if digests != committed:
        raise BadProof("the inputs that were asked are not those that were committed to")


def _claim(plain: Mapping[str, Any], queries: int) -> tuple[Finding, list[str]]:
    verdict, clients = plain["verdict"], [_text(client) for client in plain["clients"]]
    kinds = {0: ("nobody", "inconclusive"), 1: ("client",)}.get(len(clients), ("several",))
    if (
        verdict not in kinds
        or len(set(clients)) < len(clients)
        or _natural(plain["queries"]) != queries
        or len(plain) != 3
    ):
        raise BadProof("the verdict contradicts itself")
    return verdict, clients


def _check_published(links: Sequence[Commitment], published: Sequence[Commitment], time: datetime) -> None:
    commitments.verify_chain(published)
    if any(ours != theirs for ours, theirs in zip(links, published, strict=False)):
        raise BadProof("the bundle's commitments are not those that were published")
    if any(_time(later.time) <= time for later in published[len(links) :]):
        raise BadProof("the bundle leaves out clients that had joined before it was made")


def _choice(links: Sequence[Commitment]) -> Commitment:
    """The commitment that chose the questions which are now in use, or retouched them."""
    chose = links[-1 - sum(1 for _ in takewhile(lambda link: link.chosen == links[-1].chosen, links[-2::-1]))]
    return max(chose, _made(links), key=lambda link: link.number)


def _made(links: Sequence[Commitment]) -> Commitment:
    """The commitment that made the questions in use what they are: the last that has any."""
    return next(link for link in reversed(links) if link.questions[1])


def _proven(
    plain: Mapping[str, Any], links: Sequence[Commitment], *, given: bool, published: Sequence[Commitment] | None
) -> Iterator[str]:
    first = links[0]
    yield f"The bundle is as it was signed, by the key that signed the commitments: {fingerprint(first.public_key)}."
    if given:
        yield "This key is the one that you gave."
    if published:
        agree = min(len(links), len(published))
        yield f"The commitments, {agree} of {len(links)}, are those that were published."
    retouched = "and retouched " if _made(links).number > 1 else ""
    yield (
        f"The {len(plain['transcript'])} inputs that were asked are of the {first.questions[1]} questions in the "
        f"commitment dated {utc(first.time)}, as chosen {retouched}in the one dated {utc(_choice(links).time)}, and "
        "were asked in the order of the rule, none left out."
    )
    for proof in plain["answers"]:
        link = links[proof["commitment"] - 1]
        yield f"The answers shown of {proof['client']!r} are those in the commitment dated {utc(link.time)}."


def _unproven(
    plain: Mapping[str, Any], links: Sequence[Commitment], *, given: bool, published: Sequence[Commitment] | None
) -> tuple[str, ...]:
    """What rests on the word of the vault's operator, or on something that is not in the bundle."""
    open_points = []
    if not given and not published:
        open_points.append(
            "Whose key it is: compare its fingerprint with one that came another way, or give the published commitment."
        )
    if not published:
        open_points.append("When the commitments were made: their times are the operator's word.")
    elif _choice(links).number > len(published):
        open_points.append(
            "That these questions were chosen, and made what they are, before the suspect was asked: the commitment "
            "that did it is later than those that were published."
        )
    open_points.append(
        "That the suspect gave these answers, and that how to read its labels was settled beforehand: ask it again, "
        "all inputs are in the bundle."
    )
    if plain["answers"]:
        blind = ", and the questions chosen without a look at them" if _choice(links).number > 1 else ""
        open_points += [
            f"That the answers were drawn at random{blind}: an expert whom both sides trust can see it in the vault.",
            "That no more clients would have to be accused, and that no other trace of this suspect was kept back.",
            "Who made the suspect: it knows the accused's answers, which are in the accused's model and in the vault.",
        ]
    else:
        open_points.append("That nobody's answers match: to show it, everybody's answers would have to be opened.")
    return tuple(open_points)


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**32:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    return value


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError
    return time
