"""What clients usually send, and how much more one of them may count.

A client declares its own weight in the mean and chooses the size of its update. Both are compared with what others
sent: the weight counts up to a multiple of the median, and an update that is many times larger than the last round's
median is scaled down. Honest clients do not notice; one hostile client cannot take the mean over.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tramark.errors import SettingError

REMEMBERED = 100
"""Weights that are remembered, of the last rounds: one client alone cannot make up most of them."""

LARGE = 10.0
"""An update larger than so many medians of the last round is scaled down to that."""

ABSURD = 100.0
"""An update larger than so many times the whole model is refused."""


class Usual:
    """The weights and sizes of recent updates.

    >>> usual = Usual(10.0)
    >>> usual.hear([100.0, 120.0, 1e15])
    >>> usual.cap(1e15), usual.cap(80.0)
    (1200.0, 80.0)

    `most` is how many times the median of the declared weights a client may count; None is any number of times.
    """

    def __init__(self, most: float | None) -> None:
        if most is not None and not most >= 1:
            raise SettingError(f"a client counts at most weight_cap = {most} times the median: it must be at least 1")
        self.most = most
        self._recent: list[float] = []
        self._heard: list[float] = []
        self._size = math.inf

    @property
    def knows_weights(self) -> bool:
        """Whether weights of earlier rounds are known."""
        return bool(self._recent)

    def hear(self, weights: Iterable[float]) -> None:
        """Say which weights are declared in this round, as far as that is known before it is over."""
        self._heard = [weight for weight in weights if 0 < weight < math.inf]

    def cap(self, weight: float) -> float:
        """How much a client that declares a weight counts."""
        known = self._heard or self._recent
        return weight if self.most is None or not known else min(weight, self.most * lower_median(known))

    def share(self, size: float) -> float:
        """The factor by which an update of some size is scaled down; 1 unless it is far too large."""
        return min(1.0, LARGE * self._size / size) if size > 0 else 1.0

    def settle(self, weights: Iterable[float], sizes: Sequence[float]) -> None:
        """Remember what came in a round."""
        self._recent = [*self._recent, *weights][-REMEMBERED:]
        self._heard = []
        if sizes and (size := lower_median(sizes)) > 0:
            self._size = size

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self._recent, "size": self._size if self._size < math.inf else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Those of early versions have none: then nothing is known yet."""
        self._recent, self._heard = list(state.get("weights", ())), []
        size = state.get("size")
        self._size = math.inf if size is None else float(size)


def lower_median(values: Sequence[float]) -> float:
    """The median; of an even number, the smaller of the two in the middle."""
    return sorted(values)[(len(values) - 1) // 2]
