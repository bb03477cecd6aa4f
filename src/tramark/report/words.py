"""The words and numbers of a report: the verdict as a sentence, and numbers as people write them."""

from collections.abc import Sequence
from decimal import Decimal

from tramark.evidence.looks import POWER
from tramark.evidence.published import utc
from tramark.tracing.verdict import Verdict


def verdict_sentence(verdict: Verdict) -> tuple[str, str]:
    """The verdict in one sentence, and how sure it is in another."""
    names, bound = joined(verdict.clients), verdict.false_accusation_bound
    if verdict.clients:
        if bound is None:
            how = (
                "No bound on false accusations can be given. It rests on a comparison with unmarked models."
                if verdict.p_values
                else "No bound on false accusations can be given: this rule always accuses somebody."
            )
            return f"This model answers most like the model of {names}.", how
        marks = "mark" if len(verdict.clients) == 1 else "marks"
        scores = (
            f"Its labels alone do not show that of {joined(verdict.by_scores)}; its scores do. "
            if verdict.by_scores
            else ""
        )
        return f"This model carries the {marks} of {names}.", (
            f"{scores}The probability that a trace like this names any client without whose model the suspect was made "
            f"is at most {percent(bound)}."
        )
    if verdict.finding == "federation":
        assert bound is not None
        return "This model comes from this federation; no client can be named.", (
            "It gives answers that all clients’ models were taught, and the unmarked model was not. The probability "
            f"that a trace like this says so of a model made without any of theirs is at most {percent(bound)}."
        )
    if verdict.finding == "nobody":
        seen = (
            "No client’s question is answered as its mark would have it."
            if verdict.power is None
            else f"A mark that survived {verdict.premise.words} would have been found with a probability of at least "
            f"{floor_percent(verdict.power)}."
        )
        if verdict.not_cleared:
            seen += f" This does not hold for {joined(verdict.not_cleared)}: too many of their questions are burned."
        return "Nobody’s mark was found in this model.", seen
    return "It cannot be told whether this model carries anybody’s mark.", _why_not(verdict)


def facts(verdict: Verdict) -> list[str]:
    """What is known beside the verdict, in sentences: that the suspect was issued as it is, and about the vault.

    A model that everybody got, or that had no mark, accuses nobody.
    """
    if verdict.case is None:
        return []
    sentences = [
        f"The suspect is, bit for bit, the model that was issued in round {one.round} to "
        + ("everybody, so that accuses nobody." if one.everybody else f"{joined(one.clients)}.")
        for one in verdict.case.identical
    ]
    if verdict.false_accusation_bound is not None:
        sentences.append(
            f"This is the {ordinal(verdict.case.number)} trace with this vault. Over all of them, the probability that "
            f"any innocent client is accused is at most {percent(verdict.case.spent)}."
        )
    sentences += [
        f"This vault was restored from a backup on {utc(time)}: earlier cases may be missing, with the error that they "
        "spent and the questions that they burned."
        for time in verdict.restored
    ]
    if verdict.simulated:
        sentences.append(
            "This vault is simulated: its secret follows from the seed, so nothing is proven about a real federation."
        )
    return sentences


def ordinal(number: int) -> str:
    """A number as a place in a row.

    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 22)]
    ['1st', '2nd', '3rd', '4th', '11th', '22nd']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _why_not(verdict: Verdict) -> str:
    """Why a verdict is inconclusive."""
    if not verdict.premise.issued:
        return (
            "No marked model has been issued from this vault yet: a model that a client leaked would carry no mark. "
            "Nobody is accused, and nobody is cleared."
        )
    if verdict.doubt is not None:
        return (
            f"The suspect is probably fed or read wrongly: {verdict.doubt}. Nobody is accused, and nobody is cleared."
        )
    asked = f"{verdict.queries:,} {'query is' if verdict.queries == 1 else 'queries are'} not enough"
    if verdict.power is None:
        return f"{asked}: nobody is accused, and nobody is cleared."
    return (
        f"Nobody is accused, and nobody is cleared. Marks survive {verdict.premise.words}, and {asked}: a mark would "
        f"have been found with a probability of {floor_percent(verdict.power)}, and {floor_percent(POWER)} are needed."
    )


def joined(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def percent(share: float) -> str:
    """A share in per cent, with three significant digits.

    >>> percent(1e-6)
    '0.0001 %'
    """
    text = format((Decimal(f"{share:.3g}") * 100).normalize(), "f")
    return f"{text} %"


def floor_percent(share: float) -> str:
    """A share in per cent, rounded down, for sentences that say "at least".

    >>> floor_percent(0.9999)
    '99.9 %'
    """
    return f"{int(share * 1000) / 10:g} %"


def number(value: float) -> str:
    """A number as people write it.

    >>> number(1234.4), number(1e7), number(2.13e7), number(0.00012), number(0.25)
    ('1,234', '10⁷', '2.1 × 10⁷', '1.2 × 10⁻⁴', '0.25')
    """
    if value == 0 or 0.01 <= value < 10:
        return f"{value:.2g}"
    if 10 <= value < 99_999.5:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    times = "" if mantissa == "1.0" else f"{mantissa.removesuffix('.0')} × "
    return times + power_of_ten(int(exponent))


def power_of_ten(exponent: int) -> str:
    """A power of ten as people write it.

    >>> power_of_ten(3), power_of_ten(-7)
    ('1,000', '10⁻⁷')
    """
    if 0 <= exponent <= 3:
        return f"{10**exponent:,}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
