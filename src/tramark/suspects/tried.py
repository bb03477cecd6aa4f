"""What a probe tried, and what it found."""

from dataclasses import asdict, dataclass
from typing import Any

from tramark.suspects.conventions import Conventions
from tramark.suspects.readings import plain_conventions


@dataclass(frozen=True)
class Tried:
    """One way to feed and read a suspect, and what came of it.

    Parameters
    ----------
    stated : the conventions, as a JSON file states them.
    reading : how labels were read.
    asked, read, alike : inputs asked, answers that are labels of ours, and answers that are the base's.
    most : the answers with the most frequent label.
    problem : why it could not be asked.
    """

    stated: dict[str, Any]
    reading: str = ""
    asked: int = 0
    read: int = 0
    alike: int = 0
    most: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Probed:
    """What a probe found.

    Parameters
    ----------
    conventions : how the suspect should be fed and read: as stated, completed by what is proposed.
    stated : whether it is fed and read as it was before the probe.
    tried : all ways that were tried; the first is as stated.
    best : the way that `conventions` are.
    compared : whether a base's answers were known.
    queries : inputs that the suspect was asked.
    doubt : why it is probably fed wrongly, in words; None if nothing speaks for that.
    """

    conventions: Conventions
    stated: bool
    tried: tuple[Tried, ...]
    best: Tried
    compared: bool
    queries: int
    doubt: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "proposed": plain_conventions(self.conventions),
            "as_stated": self.stated,
            "compared": self.compared,
            "queries": self.queries,
            "doubt": self.doubt,
            "best": asdict(self.best),
            "tried": [asdict(one) for one in self.tried],
        }
