"""Ways to read a suspect's labels, and which of them fits what a base answers to the same inputs."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tramark.evidence.statistics import NO_ANSWER, p_values
from tramark.suspects.conventions import Conventions, Said

NUMBERED = re.compile(r"(\D*)(\d{1,6})(\D*)")

CONSISTENT, SURE = 0.7, 0.9
"""The share of answers that must fit when each name is taken for the label that it comes with; and if the plain reading
is like the base, too, for a suspect may well differ from the base in some labels."""

CHANCE = 0.01
"""A reading is like the base if its likeness is no more probable than that (p-value)."""


@dataclass(frozen=True)
class Heard(Conventions):
    """Conventions that take any label, name or number, and remember in `heard` which number stands for which."""

    heard: dict[Said, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, conventions: Conventions) -> "Heard":
        """These conventions, for listening."""
        return cls(**{one.name: getattr(conventions, one.name) for one in fields(Conventions)})

    def said(self, labels: Sequence[int]) -> list[Said]:
        """What the suspect said, from the labels that these conventions made of it."""
        words = list(self.heard)
        return [None if label == NO_ANSWER else words[label] for label in labels]

    def _label(self, said: Said) -> int:
        if said is None:
            return NO_ANSWER
        word = int(said) if isinstance(said, str) and said.isdecimal() and len(said) < 10 else said
        return self.heard.setdefault(word, len(self.heard))


@dataclass(frozen=True)
class Reading:
    """A way to read labels: in words, as `Conventions.labels` has it, and what it makes of some answers."""

    words: str
    labels: Mapping[str, int] | tuple[str | int, ...] | None
    read: tuple[int, ...]

    def alike(self, base: Sequence[int]) -> int:
        """How many of the answers are the base's."""
        return sum(ours == its for ours, its in zip(self.read, base, strict=False))

    @property
    def unread(self) -> int:
        """How many answers are no label of ours."""
        return sum(label == NO_ANSWER for label in self.read)


def best_reading(said: Sequence[Said], base: Sequence[int], classes: int) -> Reading:
    """The reading that is most like the base; the plain one, unless another fits better by two answers.

    Where the plain one reads all answers, the other must also be more like the base than chance would have it.

    >>> best_reading([1, 2, 3, 1], [0, 1, 2, 0], classes=3).words
    'labels count from 1'
    """
    plain, *others = _readings(said, base, classes)
    least = SURE if base and _like(plain, base) else CONSISTENT
    if by_likeness := _by_likeness(said, base, least):
        read = tuple(by_likeness.get(str(word), NO_ANSWER) for word in said)
        others.append(Reading(f"{len(by_likeness)} labels by what the base says to the same inputs", by_likeness, read))

    def worth(reading: Reading) -> tuple[int, int]:
        return reading.alike(base), -reading.unread

    best = max(others, key=worth, default=plain)
    enough = plain.alike(base) + (2 if base else 0)
    if base and not plain.unread and not _like(best, base):
        return plain
    return best if worth(best) > worth(plain) and best.alike(base) >= enough else plain


def _like(reading: Reading, base: Sequence[int]) -> bool:
    count, labels = min(len(reading.read), len(base)), len(set(base))
    return labels > 1 and float(p_values(count, labels)[reading.alike(base)]) <= CHANCE


def _readings(said: Sequence[Said], base: Sequence[int], classes: int) -> Iterator[Reading]:
    numbers = [word if isinstance(word, int) else -1 for word in said]
    yield Reading("labels as they are", None, _within(numbers, classes))
    if base or (max(numbers, default=0) == classes and 0 not in numbers):
        from_one = _within([number - 1 for number in numbers], classes)
        yield Reading("labels count from 1", tuple(range(1, classes + 1)), from_one)
    parts = [NUMBERED.fullmatch(word) if isinstance(word, str) else None for word in said]
    affixes = {(part[1], part[3]) for part in parts if part}
    if len(affixes) == 1 and all(part or word is None for part, word in zip(parts, said, strict=True)):
        [(before, after)] = affixes
        found = [int(part[2]) if part else -1 for part in parts]
        lowest = [0, 1] if base else [int(max(found) == classes and 0 not in found)]
        for first in lowest:
            names = tuple(f"{before}{number + first}{after}" for number in range(classes))
            yield Reading(f"labels by their names, {names[0]} …", names, _within([n - first for n in found], classes))


def _by_likeness(said: Sequence[Said], base: Sequence[int], least: float) -> dict[str, int] | None:
    """Our label for each of the suspect's, if each goes with one of the base's; None if they do not, or are too few."""
    pairs = Counter((str(word), label) for word, label in zip(said, base, strict=False) if word is not None)
    taken: dict[str, int] = {}
    fitting = 0
    for (word, label), times in pairs.most_common():
        if word not in taken and label not in taken.values() and times > 1:
            taken[word] = label
            fitting += times
    enough = len(said) >= 2 * len(set(base)) and len(taken) >= max(2, len(set(base)) // 2)
    return taken if enough and fitting >= least * len(said) else None


def _within(numbers: Sequence[int], classes: int) -> tuple[int, ...]:
    return tuple(number if 0 <= number < classes else NO_ANSWER for number in numbers)


def plain_conventions(conventions: Conventions) -> dict[str, Any]:
    """What conventions state, as a JSON file for `--conventions` says it."""
    defaults, plain = Conventions(), {}
    for one in fields(Conventions):
        value = getattr(conventions, one.name)
        if one.name != "prepare" and value != getattr(defaults, one.name):
            plain[one.name] = list(value) if isinstance(value, tuple) else value
    return plain
