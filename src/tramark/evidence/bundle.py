"""Check an evidence bundle, as versions before statements and annexes made them (their rule is "e-values 2").

A bundle has the transcript with every input that was asked, the chain of commitments, and openings. The openings show
that these inputs, and the accused clients' answers to them, are what was committed to. A bundle opens nothing else:
no question that was not asked, and no answer of a client that is not accused, unless a client is accused by the
company look, which takes everybody's answers. `verify_bundle` checks all of it and weighs the evidence again from the
opened answers; `Findings` say what that proves and what it cannot prove. A bundle is one canonical JSON text, so no
byte of it can change unnoticed. docs/reference/report.md has its fields.
"""

import base64
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from tramark.errors import BadProof, Unreadable
from tramark.evidence import commitment as commitments
from tramark.evidence.commitment import Commitment, canonical, natural
from tramark.evidence.findings import AT_MOST, Findings, left_out, proven, same_key, too_weak, unproven
from tramark.evidence.looks import POWER, Finding, Query, conclude, finding_of, weigh
from tramark.evidence.premise import ASSUMED, FAINT, Premise
from tramark.evidence.published import check_order, check_published, lacking, made_by, time_of
from tramark.evidence.published import federation as published_clients
from tramark.evidence.statistics import NO_ANSWER

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


def is_bundle(text: bytes) -> bool:
    """Whether a file says that it is a bundle."""
    return b'"format":"tramark evidence' in text


def verify_bundle(
    bundle: Mapping[str, Any] | bytes,
    *,
    public_key: str | None = None,
    published: Sequence[Commitment] | None = None,
    at_most: float = AT_MOST,
) -> Findings:
    """The findings of a bundle; `BadProof` if anything in it is not as it must be. It needs no vault and no secret.

    Parameters
    ----------
    bundle : the bytes of its file, in which not even a space may differ, or its values.
    public_key : the key that must have signed it, in hex or by its fingerprint, from a source other than the bundle.
    published : the commitments as they were published, with which those of the bundle must agree.
    at_most : the largest bound on false accusations at which an accusation is taken as proven.
    """
    try:
        text = bundle if isinstance(bundle, bytes) else canonical(bundle)
        plain = json.loads(text)
        exact = canonical(plain) == text
    except (ValueError, TypeError, RecursionError):
        raise Unreadable("this is not an evidence bundle: it is not JSON") from None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise Unreadable(f"this is not an evidence bundle that this version knows: its format is not {FORMAT!r}")
    if not exact:
        raise BadProof("the bundle was changed: it is not the canonical text of what it says")
    try:
        case = _checked(plain, public_key, published)
    except (TypeError, KeyError, IndexError, ValueError, AttributeError, ArithmeticError):
        raise BadProof("this is not a well-formed evidence bundle") from None
    return _weighed(plain, case, published, at_most)


class _Case(NamedTuple):
    """What a bundle says, after everything but the weight of the evidence is checked."""

    links: Sequence[Commitment]
    order: Sequence[int]
    variants: int
    bound: float
    known: Mapping[Query, int]
    finding: Finding
    accused: Sequence[str]
    premise: Premise
    opened: Mapping[str, Mapping[int, int]]
    proven: tuple[str, ...]
    unproven: tuple[str, ...]


def _checked(plain: dict[str, Any], public_key: str | None, published: Sequence[Commitment] | None) -> _Case:
    if plain.keys() != _FIELDS or not all(type(plain[name]) is str for name in ("suspect", "notes")):
        raise ValueError
    links = [Commitment.from_dict(item) for item in plain["commitments"]]
    commitments.verify_chain(links)
    time, keys = time_of(plain["time"]), commitments.signers(links)
    signed = canonical({name: value for name, value in plain.items() if name != "signature"})
    commitments.verify_signature(keys[-1], "evidence", signed, plain["signature"])
    given = next((key for key in keys if public_key is not None and same_key(public_key, key)), None)
    if public_key is not None and given is None:
        raise BadProof("the bundle is signed with another key than the one given")
    check_order(links, plain["time"])
    if published is not None:
        check_published(links, published)
        if any(time_of(later.time) <= time for later in published[len(links) :]):
            raise BadProof("the bundle leaves out clients that had joined before it was made")

    order, variants, bound = _parameters(plain["parameters"], links)
    known = _transcript(plain, order, variants)
    _check_inputs(plain, links, variants)
    finding, accused, premise = _claim(plain["verdict"], len(known))
    opened = {proof["client"]: commitments.verify_answers(proof, links) for proof in plain["answers"]}
    if len(opened) < len(plain["answers"]) or (list(opened) != accused and not _everybody(opened, accused, links)):
        raise BadProof("the answers that are opened are not those of the accused, nor those of everybody")
    if any(answers.keys() != {question for question, _ in known} for answers in opened.values()):
        raise BadProof("the answers that are opened are not those to the questions that were asked")
    knows: dict[str, Any] = {"given": given, "published": published}
    said = tuple(proven(plain, links, **knows))
    unsaid = unproven(plain, links, premise if finding == "nobody" else None, **knows)
    return _Case(links, order, variants, bound, known, finding, accused, premise, opened, said, unsaid)


def _weighed(plain: Mapping[str, Any], case: _Case, published: Sequence[Commitment] | None, at_most: float) -> Findings:
    first, federation = case.links[0], _federation(case.links)
    # If nobody is accused, the answers are still counted: against a client that never matches.
    rows = list(case.opened.values()) or [{}]
    looks = weigh(
        lambda plan: (case.known[query] for query in plan if query in case.known),
        np.array([[answers.get(question, NO_ANSWER) for question in case.order] for answers in rows]),
        case.order,
        variants=case.variants,
        clients=federation,
        classes=first.classes,
        false_accusation=case.bound,
        # When a trace stops depends on everybody's answers. All that was asked is weighed here: an accusation is final.
        exhaustive=True,
    )
    outcome, clients = conclude(looks, case.premise.surviving), list(case.opened)
    power = max(look.power_by_matches(case.premise.surviving) for look in looks)
    if case.finding == "nobody" and power < POWER:
        raise BadProof("the answers do not suffice to clear everybody, even if they match nobody's")
    reached = {clients[row] for row in outcome.accused}
    if innocent := [client for client in case.accused if client not in reached]:
        raise BadProof(f"the evidence does not suffice to accuse {' and '.join(map(repr, innocent))}")
    matches, e_values, p_values = (
        {client: values[clients.index(client)] for client in case.accused}
        for values in (outcome.shown.matches.tolist(), outcome.e_values.tolist(), outcome.shown.p().tolist())
    )
    answered, needed = outcome.shown.answered, federation / case.bound
    joined = [proof["commitment"] for proof in plain["answers"] if proof["client"] in case.accused]
    lacks = [*lacking(case.links, published, joined), *too_weak(case.accused, case.bound, at_most)]
    everybody = published_clients(case.links, published)
    if case.accused and min(e_values.values()) < everybody / case.bound:
        lacks.append(left_out(everybody, federation))
    in_company = _IN_COMPANY * _everybody(case.opened, case.accused, case.links)
    return Findings(
        finding=case.finding,
        clients=tuple(case.accused),
        suspect=plain["suspect"],
        notes=plain["notes"],
        time=plain["time"],
        vault=first.vault,
        public_key=case.links[-1].public_key,
        federation=federation,
        classes=first.classes,
        false_accusation_bound=case.bound,
        needed=needed,
        queries=len(case.known),
        answered=answered,
        matches=matches,
        e_values=e_values,
        p_values=p_values,
        proven=(
            *case.proven,
            *(
                f"{client!r} was to answer {matches[client]} of {answered} questions as the suspect does. Its "
                f"e-value reached {e_values[client]:.3g}{in_company}, and {needed:.3g} is needed "
                f"to accuse one of {federation} clients at a bound of {case.bound:g}."
                for client in case.accused
            ),
        ),
        unproven=case.unproven,
        premise=case.premise,
        lacking=tuple(lacks),
        signers=(case.links[-1].public_key,),
    )


def _federation(links: Sequence[Commitment]) -> int:
    """The number of clients that are committed to."""
    return sum(links[-1].clients)


def _everybody(opened: Collection[str], accused: Sequence[str], links: Sequence[Commitment]) -> bool:
    """Whether the answers of all clients are opened, as the company look needs them."""
    return len(opened) == _federation(links) and set(accused) <= set(opened)


def _parameters(plain: Mapping[str, Any], links: Sequence[Commitment]) -> tuple[list[int], int, float]:
    """The order of the questions, the number of variants and the bound; the other parameters must be as committed."""
    first, order, federation = links[0], list(links[-1].chosen), _federation(links)
    expected = {"rule": RULE, "clients": federation, "classes": first.classes}
    variants, text = natural(plain["variants"]), plain["false_accusation_bound"]
    if plain != expected | {"variants": variants, "false_accusation_bound": text}:
        raise BadProof("the parameters are not those that were committed to")
    if first.assignment != "code" or first.classes < 2 or federation < 1:
        raise BadProof("only code answers have a bound on false accusations that could be checked")
    bound = float(text)
    if repr(bound) != text or not 0 < bound < 1 or not 0 < variants <= _MOST_VARIANTS:
        raise ValueError
    return order, variants, bound


def _transcript(plain: Mapping[str, Any], order: Sequence[int], variants: int) -> dict[Query, int]:
    """The suspect's answers by query. The queries must be those of the rule, in its order, with none left out."""
    steps = plain["transcript"]
    known = {(natural(step["question"]), natural(step["variant"])): step["answer"] for step in steps}
    if not known or any(type(answer) is not int or answer < NO_ANSWER for answer in known.values()):
        raise ValueError
    queries = [(step["question"], step["variant"]) for step in steps]
    if queries != list(islice(_plan(order, variants), len(queries))):
        raise BadProof("what was asked is not what the rule says: the questions in order, then their other variants")
    return known


def _plan(order: Sequence[int], variants: int) -> Iterator[Query]:
    """All queries of a trace, in its order."""
    again = ((question, variant) for question in order for variant in range(1, variants))
    return chain(((question, 0) for question in order), again)


def _check_inputs(plain: Mapping[str, Any], links: Sequence[Commitment], variants: int) -> None:
    """Raise `BadProof` unless the inputs that were asked are those of the commitment that has them."""
    proof, (dtype, shape) = plain["questions"], (plain["input"]["dtype"], plain["input"]["shape"])
    committed = commitments.verify_questions(proof, links)
    firsts = {part["first"] for part in proof["questions"]}
    counts = {part["count"] for part in proof["questions"]}
    if proof["commitment"] != made_by(links).number or len(firsts) > 1 or counts != {variants}:
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
        committed_as = step["question"], held_out + step["variant"]
        digests[committed_as] = commitments.array_digest(dtype, [natural(length) for length in shape], data)
    if digests != committed:
        raise BadProof("the inputs that were asked are not those that were committed to")


def _claim(plain: Mapping[str, Any], queries: int) -> tuple[Finding, list[str], Premise]:
    """The finding, the accused and the premise that the bundle claims. Bundles of early versions have no premise."""
    finding, clients = plain["verdict"], list(plain["clients"])
    premise = Premise.from_dict(plain["premise"]) if "premise" in plain else ASSUMED
    if premise.surviving > FAINT:
        # The rule of these bundles never assumed more.
        raise ValueError
    if (
        finding not in {finding_of(len(clients), cleared=cleared) for cleared in (True, False)}
        or len(set(clients)) < len(clients)
        or not all(type(client) is str for client in clients)
        or natural(plain["queries"]) != queries
        or len(plain) != 3 + ("premise" in plain)
        or ("premise" in plain and clients)
        or (finding == "nobody" and not premise.issued)
    ):
        raise BadProof("the verdict contradicts itself")
    return finding, clients, premise
