"""The words and numbers of a report: the verdict as a sentence, and numbers as people write them."""

from collections.abc import Sequence
from decimal import Decimal

from tramark.evidence.looks import POWER
from tramark.evidence.premise import FAINT
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
        return f"This model was leaked by {names}.", (
            f"The probability that a procedure like this accuses any innocent client is at most {percent(bound)}."
        )
    if verdict.finding == "nobody":
        seen = (
            "No client’s question is answered as its mark would have it."
            if verdict.power is None
            else f"Had a client leaked it, and its mark survived {verdict.premise.words}, that would have shown "
            f"with a probability of at least {floor_percent(verdict.power)}."
        )
        return "Nobody is accused: this model shows no client’s mark.", seen
    return "It cannot be told who leaked this model.", _why_not(verdict)


def _why_not(verdict: Verdict) -> str:
    """Why a verdict is inconclusive."""
    if not verdict.premise.issued:
        return (
            "No marked model has been issued from this vault yet: a model that a client leaked would show no mark. "
            "Nobody is accused, and nobody is cleared."
        )
    asked = f"{verdict.queries:,} {'query is' if verdict.queries == 1 else 'queries are'} not enough"
    if verdict.premise.surviving == FAINT or verdict.power is None:
        return f"{asked}: nobody is accused, and nobody is cleared."
    return (
        f"Marks survive {verdict.premise.words}. With so little left of them, {asked}: a leaker would have shown "
        f"with a probability of {floor_percent(verdict.power)}, and {floor_percent(POWER)} are needed to clear all."
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
