"""The premise of a verdict that accuses nobody: what is known of the mark that a leaked model would carry.

A suspect without anybody's mark clears the clients only if a leaked model would have shown one. So it must be known
that models with marks were issued at all, and in what share of the questions a mark survives.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAINT = 0.5
"""The share of the questions in which a leaker's mark is assumed to survive if nothing was measured."""


@dataclass(frozen=True)
class Premise:
    """What is known of the mark that a leaked model would carry.

    >>> Premise().words
    'in half of the questions (as is assumed)'
    >>> Premise(surviving=0.4, measured=True).words
    'in 40 % of the questions (as was measured on models that clients returned)'

    Parameters
    ----------
    issued : whether any model with a mark was issued.
    surviving : the share of the questions in which a leaker's mark survives.
    measured : whether that share was measured on models that clients returned; otherwise one half is assumed.
    """

    issued: bool = True
    surviving: float = FAINT
    measured: bool = False

    @property
    def words(self) -> str:
        """In what share of the questions a mark survives, and how that is known."""
        if not self.measured:
            return "in half of the questions (as is assumed)"
        return f"in {round(100 * self.surviving)} % of the questions (as was measured on models that clients returned)"

    def to_dict(self) -> dict[str, Any]:
        """The values as a bundle has them, which holds no fractions."""
        return {"issued": self.issued, "surviving": repr(self.surviving), "measured": self.measured}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Premise":
        """The premise in a bundle; `ValueError` if it is not what `to_dict` gives."""
        premise = cls(plain["issued"], float(plain["surviving"]), plain["measured"])
        flags = {type(premise.issued), type(premise.measured)}
        if premise.to_dict() != plain or flags != {bool} or not 0 <= premise.surviving <= 1:
            raise ValueError
        if not premise.measured and premise.surviving != FAINT:
            raise ValueError
        return premise


ASSUMED = Premise()
"""The premise without a vault that knows better."""
