"""Numbers of several seeds, as tables write them."""

import math
from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from tramark.lab.studies.study import Row

NONE = "–"
"""A cell without a number."""


def percent(values: Iterable[float | None], digits: int = 2) -> str:
    """The mean of shares in percent, with the standard deviation if there are several.

    >>> percent([0.86, 0.88]), percent([1.0]), percent([None])
    ('87.00 ± 1.41', '100.00', '–')
    """
    return number([None if value is None else 100 * value for value in values], f".{digits}f")


def number(values: Iterable[float | None], form: str = ".2f") -> str:
    """The mean of numbers, with the standard deviation if there are several."""
    there = [value for value in values if value is not None]
    if not there:
        return NONE
    text = format(mean(there), form)
    return text if len(there) == 1 else f"{text} ± {format(stdev(there), form.lstrip('+'))}"


def given(value: float | None, form: str = ".2f") -> str:
    """A number of the paper's, or none."""
    return NONE if value is None else format(value, form)


def column(rows: Iterable[Row], name: str) -> list[float | None]:
    """A number of each row; None where it has none."""
    return [row.get(name) for row in rows]


def average(values: Iterable[float | None], scale: float = 1.0) -> float | None:
    """The mean of the numbers that are there."""
    there = [value for value in values if value is not None]
    return scale * mean(there) if there else None


def by(rows: Iterable[Row], *labels: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows by the labels of their cases, in the order in which they come.

    >>> by([{"settings": {"split": "iid"}, "ma": 1}, {"settings": {"split": "iid"}, "ma": 2}], "split").keys()
    dict_keys([('iid',)])
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row["settings"][label]) for label in labels), []).append(row)
    return groups


def paired(rows: Sequence[Row], others: Sequence[Row], name: str = "ma") -> list[float]:
    """Differences between rows of the same seeds."""
    theirs = {row["seed"]: row[name] for row in others}
    return [row[name] - theirs[row["seed"]] for row in rows if row["seed"] in theirs]


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share.

    >>> [round(end, 2) for end in wilson(10, 10)]
    [0.72, 1.0]
    """
    if not count:
        return 0.0, 1.0
    share, square = hits / count, z * z / count
    centre, half = share + square / 2, z * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, (centre - half) / (1 + square)), min(1.0, (centre + half) / (1 + square))


def t_test(values: Sequence[float], others: Sequence[float]) -> float | None:
    """The p-value of Welch's t-test that two means are the same; None with fewer than two values each.

    >>> t_test([0.6, 0.61, 0.62], [0.6, 0.61, 0.62])
    1.0
    """
    from scipy.stats import ttest_ind

    if min(len(values), len(others)) < 2 or len({*values, *others}) == 1:
        return None
    return float(ttest_ind(values, others, equal_var=False).pvalue)


def where(rows: Iterable[Row], **labels: object) -> list[Row]:
    """The rows whose cases have these labels."""
    return [row for row in rows if all(row["settings"].get(name) == value for name, value in labels.items())]
