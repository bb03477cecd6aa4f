"""Probe: find out how a suspect is fed and read, by inputs that are public, before the first question.

The suspect is fed as it is said to be, and in other likely ways, and its answers are compared with those of the vault's
unmarked base. What the user states stands; where nothing is stated, the way under which the suspect is most like the
base is proposed. A suspect that says the same to everything, whose labels are not known, or which is like the base in
no way, is probably fed wrongly: then "nobody" would say nothing, and `Probed.doubt` says why.

No client has an answer to public inputs, so a probe tells nothing of codewords and spends no error.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from tramark.errors import BudgetSpent, SuspectError, SuspectUnavailable, one_line
from tramark.evidence.statistics import p_values
from tramark.suspects.base import Suspect
from tramark.suspects.conventions import Conventions, Said
from tramark.suspects.feeding import other_geometries, other_orders, other_values
from tramark.suspects.http import HttpSuspect
from tramark.suspects.readings import CHANCE, Heard, Reading, best_reading, plain_conventions
from tramark.suspects.tried import Probed, Tried

QUERIES = 64
"""The most public inputs that a server is asked. A file is asked all of them in each way."""

FIRST, EACH, MORE = 8, 4, 12
"""Inputs that a server is asked as it is said to be fed; in each other way; and in those that fit best."""

SHAPES = 32
"""The most shapes of inputs that are tried."""

LIVELY, READ, ALIKE = 0.9, 0.8, 1.0
"""A suspect gives one label to a smaller share of the inputs; gives labels of ours to this share at least; and is like
the base, so that no other way need be tried."""


AHEAD = 0.2
"""By what share of the answers another way must be more like the base than the way that is stated, to be proposed. A
suspect that is fed rightly differs from the base, too."""


class Fed(Suspect, Protocol):
    """A suspect that has conventions."""

    conventions: Conventions


def probe(
    suspect: Fed, raw: Tensor, base: Sequence[int] | None, classes: int, *, allowance: int | None = QUERIES
) -> Probed:
    """How a suspect is fed and read.

    Parameters
    ----------
    raw : public inputs.
    base : the unmarked base's answers to them, if known.
    classes : the number of our labels.
    allowance : the most inputs to ask; None for no limit.
    """
    return _Probe(suspect, raw, list(base or ()), classes, math.inf if allowance is None else allowance).run()


class _Probe:
    def __init__(self, suspect: Fed, raw: Tensor, base: list[int], classes: int, allowance: float) -> None:
        self.suspect, self.raw, self.base, self.classes, self.left = suspect, raw, base, classes, allowance
        self.stated = suspect.conventions
        self.image = raw.ndim == 4 and raw.dtype.itemsize == 1
        # What is sent as a picture has no range of values.
        self.by_numbers = bool(getattr(suspect, "by_numbers", True))
        self.at_once = bool(getattr(suspect, "at_once", False))
        self.asked: dict[str, list[Said]] = {}
        self.problems: dict[str, SuspectError] = {}
        self.ways: dict[str, Conventions] = {}
        self.queries = 0

    def run(self) -> Probed:
        with suppress(BudgetSpent):
            self._explore()
        best = self._best()
        first, found = self._tried(self.stated), self._tried(best)
        if not found.asked:
            raise next(iter(self.problems.values()))
        reading = self._reading(best)
        labels = best.labels if self._listening else None
        if self._listening and reading.labels is not None:
            labels = reading.labels
        proposed = replace(best, labels=labels) if self._listening else best
        same = plain_conventions(proposed) == plain_conventions(self.stated)
        tried = (first, *(self._tried(way) for key, way in self.ways.items() if key != _key(self.stated)))
        return Probed(proposed, same, tried, found, bool(self.base), self.queries, self._doubt(found))

    @property
    def _listening(self) -> bool:
        """Whether labels are read in any way that fits: the user states none."""
        return self.stated.labels is None

    def _explore(self) -> None:
        way = self.stated
        if not self._ask(way, 1, patient=True):
            shapes = other_geometries(way, self.raw, getattr(self.suspect, "declared", ())) if self.image else ()
            values = [*other_values(way, self.raw)][:1] if self.image and self.by_numbers else []
            for number, other in enumerate((*values, *shapes)):
                if number >= SHAPES or self._ask(other, 1):
                    way = other
                    break
                # A suspect that wants bytes takes nothing else, in whatever shape.
                whole = next(other_values(other, self.raw), None) if self._wants_whole_numbers(other) else None
                if whole is not None and self._ask(whole, 1):
                    way = whole
                    break
        if not self.asked.get(_key(way)):
            return
        self._ask(way, FIRST)
        if not self._surely(way):
            self._ask(way, self._first)
        if self._surely(way) or not self.image:
            return
        plain = replace(way, value_range=None, mean=(), std=()) if not self.stated.normalised else way
        others = [*(other_values(plain, self.raw) if self.by_numbers else ()), *other_orders(way, self.raw)]
        for other in others:
            self._ask(other, len(self.raw) if self.at_once else EACH)
        for other in sorted(others, key=self._share, reverse=True)[:2]:
            if self._share(other) > self._share(way) or not self.base:
                self._ask(other, MORE)
                self._ask(way, MORE)

    @property
    def _first(self) -> int:
        """Inputs that are asked first; more where names have to be told apart, or labels come in another order."""
        if self.at_once:
            return len(self.raw)
        said = [word for words in self.asked.values() for word in words]
        named = any(isinstance(word, str) for word in said) or len(set(said)) > FIRST // 2
        return min(len(self.raw), 3 * len(set(self.base)), QUERIES // 2) if named and self._listening else FIRST

    def _surely(self, way: Conventions) -> bool:
        """Whether a way fits so well that no other need be tried."""
        if self.base:
            return self._share(way) >= ALIKE
        return self._doubt(self._tried(way)) is None

    def _ask(self, way: Conventions, count: int, *, patient: bool = False) -> bool:
        """Asks up to `count` inputs in one way, those not asked before; tells whether it answers."""
        key = _key(way)
        said = self.asked.setdefault(key, [])
        self.ways[key] = way
        new = self.raw[len(said) : int(min(count, len(said) + self.left))]
        if key in self.problems or not len(new):
            return key not in self.problems and bool(said)
        heard = Heard.of(way) if self._listening else way
        again, before = False, self.suspect.asked if isinstance(self.suspect, HttpSuspect) else None
        try:
            with _fed(self.suspect, heard, patient=patient):
                labels = self.suspect.ask(new).labels.tolist()
            said += heard.said(labels) if isinstance(heard, Heard) else labels
        except BudgetSpent:
            raise
        except SuspectUnavailable as error:
            # A server may fail on inputs that it cannot take; any other failure is not about inputs.
            if error.status == 500:
                self.problems[key] = error
            elif patient:
                raise
            else:
                again = True
        except SuspectError as error:
            self.problems[key] = error
        sent = len(new) if before is None else self.suspect.asked - before  # type: ignore[attr-defined]
        self.queries += sent
        self.left -= sent
        return self._ask(way, count, patient=True) if again else key not in self.problems

    def _wants_whole_numbers(self, way: Conventions) -> bool:
        """Whether a way failed before anything was sent, because the suspect declares whole numbers."""
        return "whole numbers" in str(self.problems.get(_key(way), ""))

    def _best(self) -> Conventions:
        """The way to propose: as stated, unless it does not work, or another is clearly more like the base."""
        working = [way for key, way in self.ways.items() if self.asked[key] and key not in self.problems]
        if not working:
            return self.stated
        default = self.stated if self.stated in working else working[0]
        best = max(working, key=lambda way: (self._share(way), way == default))
        if not self.base:
            lively = [way for way in working if self._doubt(self._tried(way)) is None]
            return default if default in lively or not lively else lively[0]
        asked = min(len(self.asked[_key(way)]) for way in (best, default))
        clearly = self._ahead(best, default) >= max(2, AHEAD * asked)
        return best if clearly and self._share(best) >= 0.5 else default

    def _reading(self, way: Conventions) -> Reading:
        said = self.asked.get(_key(way), [])
        if self._listening:
            return best_reading(said, self.base[: len(said)], self.classes)
        within = tuple(n if isinstance(n, int) and 0 <= n < self.classes else -1 for n in said)
        return Reading("labels as stated", None, within)

    def _share(self, way: Conventions) -> float:
        """The share of answers that are the base's; without a base, of answers that differ."""
        reading = self._reading(way)
        count = len(reading.read)
        if not count or _key(way) in self.problems:
            return -1.0
        return reading.alike(self.base) / count if self.base else len(set(reading.read)) / count

    def _ahead(self, way: Conventions, other: Conventions) -> int:
        """By how many answers one way is more like the base than another, over the inputs asked in both."""
        both = self.base[: min(len(self.asked[_key(one)]) for one in (way, other))]
        return self._reading(way).alike(both) - self._reading(other).alike(both)

    def _tried(self, way: Conventions) -> Tried:
        reading = self._reading(way)
        problem = self.problems.get(_key(way))
        return Tried(
            stated=plain_conventions(way),
            reading=reading.words,
            asked=len(reading.read),
            read=len(reading.read) - reading.unread,
            alike=reading.alike(self.base),
            most=max(Counter(reading.read).values(), default=0),
            problem=None if problem is None else one_line(problem),
        )

    def _doubt(self, found: Tried) -> str | None:
        """Why a suspect is probably fed or read wrongly."""
        if found.read < READ * found.asked:
            return f"{found.asked - found.read} of {found.asked} answers are no labels of the federation's"
        if found.asked < min(FIRST, len(self.raw)):
            return None
        expected = len(set(self.base[: found.asked])) if self.base else self.classes
        if expected > 2 and found.most >= LIVELY * found.asked:
            return f"{found.most} of {found.asked} different inputs get the same label"
        if not self.base or expected < 3:
            return None
        by_chance = float(p_values(found.asked, expected)[found.alike])
        if by_chance > CHANCE:
            return (
                f"only {found.alike} of {found.asked} answers are those of the federation's own model, however the "
                "suspect is fed"
            )
        best = max((self._tried(way) for way in self.ways.values()), key=_likeness)
        if _likeness(best) >= _likeness(found) + 0.25:
            return "it is more like the federation's own model if it is fed in another way than stated"
        return None


def _likeness(tried: Tried) -> float:
    return tried.alike / tried.asked if tried.asked and tried.problem is None else 0.0


def _key(way: Conventions) -> str:
    return repr(replace(way, prepare=None)) + str(way.normalised)


@contextmanager
def _fed(suspect: Fed, conventions: Conventions, *, patient: bool) -> Iterator[None]:
    """The suspect fed and read in another way for a while. Failed requests are not repeated, unless `patient`."""
    before = suspect.conventions
    suspect.conventions = conventions
    client = suspect.client if isinstance(suspect, HttpSuspect) else None
    options = client.options if client else None
    if client and options and not patient:
        client.options = replace(options, retries=min(options.retries, 1))
    try:
        yield
    finally:
        suspect.conventions = before
        if client and options:
            client.options = options
