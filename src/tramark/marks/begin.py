"""Say after which round marks begin.

Marks that begin early wear off, since the base still moves much; marks that begin late protect few rounds. The paper
begins after 25 of 50 rounds. If the number of rounds is known, marks begin after half of them, 25 at most. If not, they
begin when the base moves slowly: when two updates in a row are at most a quarter of the largest one so far. Where the
server chooses when they begin, they also wait a while for a base that has not learnt anything yet.
"""

from collections.abc import Mapping
from typing import Any, Literal

from tramark.errors import SettingError

Warmup = int | Literal["auto"]
"""How many rounds are played before the first marks."""

LATEST = 25
"""Without other orders, marks begin after this round at the latest."""

EARLIEST = 3
"""If the number of rounds is not known, marks do not begin before the end of this round."""

SLOW = 0.25
"""The base moves slowly if an update is at most this share of the largest one."""

LEFT = 3
"""Marked rounds that must be left when marks have waited for a base that has not learnt anything."""

IN_A_ROW = 2
"""Slow rounds in a row after which marks begin."""


def begin_after(warmup: Warmup, rounds: int) -> int:
    """The round after which marks begin, if there are `rounds` of them in all.

    >>> [begin_after("auto", rounds) for rounds in (2, 5, 6, 50, 600)]
    [1, 2, 3, 25, 25]
    """
    return max(1, min(LATEST, rounds // 2)) if warmup == "auto" else warmup


class Beginning:
    """Decides when marks begin, from the number of rounds or from how the base moves.

    >>> beginning = Beginning("auto")
    >>> for round, size in enumerate([8.0, 4.0, 2.0, 1.0], 1):
    ...     beginning.observe(size)
    ...     print(round, beginning.due(round))
    1 False
    2 False
    3 False
    4 True
    """

    def __init__(self, warmup: Warmup, rounds: int | None = None) -> None:
        if warmup != "auto" and (not isinstance(warmup, int) or warmup < 0):
            raise SettingError(
                f"{warmup} warm-up rounds: it is a number, and not fewer than none, or 'auto' to have it chosen"
            )
        self.warmup = warmup
        self._largest, self._slow = 0.0, 0
        self.rounds: int | None = None
        if rounds is not None:
            self.expect(rounds)

    def expect(self, rounds: int) -> None:
        """Say how many rounds there are in all; `SettingError` if none of them would be marked."""
        after = begin_after(self.warmup, rounds)
        if after >= rounds:
            raise SettingError(
                f"{after} warm-up rounds of {rounds}: there must be fewer of them, or no model is marked. Train for "
                "more rounds, or warm up for fewer: 'auto' takes half of them, 25 at most, if there are two or more"
            )
        self.rounds = rounds

    @property
    def after(self) -> int | None:
        """The round after which marks begin; None if the base's moves decide it."""
        if self.rounds is not None:
            return begin_after(self.warmup, self.rounds)
        return None if self.warmup == "auto" else self.warmup

    def observe(self, size: float) -> None:
        """Take note of the size of a round's mean update."""
        self._largest = max(self._largest, size)
        self._slow = self._slow + 1 if size <= SLOW * self._largest else 0

    def due(self, round: int) -> bool:
        """Whether marks are to be made at the end of a round."""
        if self.after is not None:
            return round >= self.after
        return round >= LATEST or (round >= EARLIEST and self._slow >= IN_A_ROW)

    def may_wait(self, round: int) -> bool:
        """Whether marks that are due may wait for a base that has not learnt anything yet.

        They wait for half of the rounds that are left, but for none if too few would be marked then.

        >>> [Beginning("auto", 14).may_wait(round) for round in (7, 9, 10)]
        [True, True, False]
        """
        if self.warmup != "auto":
            return False
        if self.rounds is None:
            return round < LATEST
        after = begin_after(self.warmup, self.rounds)
        return round < min(after + (self.rounds - after) // 2, self.rounds - LEFT)

    def state_dict(self) -> dict[str, Any]:
        """What was observed."""
        return {"largest": self._largest, "slow": self._slow}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was observed. States of early versions have nothing of it."""
        self._largest, self._slow = float(state.get("largest", 0.0)), int(state.get("slow", 0))
