"""The server's states that a vault keeps: the newest, and a few earlier ones to go back to.

A hostile client may be noticed rounds after it has spoilt the base. So the states of the last two rounds are kept, and
older ones at growing distances. Going back is an entry of the log. What was issued since stays issued, what was burned
stays burned, and the error that was spent stays spent.
"""

import json
import re
from collections.abc import Collection, Iterable

from tramark.errors import VaultError
from tramark.vault.storage import Storage

EARLY, REPORTS = "server", "reports"
"""Where early versions kept the newest state, and where the reports of all rounds are."""

APART = (1, 5, 25)
"""Besides the newest state, the newest one that is at least one round older and a multiple of each of these is kept."""

_NAME = re.compile(r"server-([0-9]+)")


def name_of(round: int) -> str:
    """The name under which the state after a round is sealed."""
    return f"{EARLY}-{round}"


def rounds_of(names: Iterable[str]) -> list[int]:
    """The rounds whose states are among some sealed names, oldest first."""
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)


def newest(names: Collection[str]) -> str | None:
    """The name of the newest state; None if there is none."""
    rounds = rounds_of(names)
    return name_of(rounds[-1]) if rounds else EARLY if EARLY in names else None


def kept(rounds: Iterable[int], round: int) -> set[int]:
    """Which rounds' states stay when that of a round is saved. States of later rounds do not.

    >>> rounds = set()
    >>> for round in range(1, 40):
    ...     rounds = kept(rounds, round)
    >>> sorted(rounds)
    [25, 35, 38, 39]
    """
    before = [old for old in rounds if old < round]
    found = {max((old for old in before if old % apart == 0), default=round) for apart in APART}
    return found | {round}


def dropped(names: Collection[str], round: int) -> set[str]:
    """The sealed states that go when that of a round is saved."""
    rounds = rounds_of(names)
    gone = set(rounds) - kept(rounds, round)
    return {name_of(old) for old in gone} | ({EARLY} & set(names))


def rewind(storage: Storage, round: int) -> None:
    """Make an earlier state the newest: states and reports of later rounds are deleted, and the log says so."""
    # Imported here because it loads torch, which opening a vault does not need.
    from tramark.vault.packing import unpack

    with storage.mutex:
        names = storage.head().sealed
        rounds = rounds_of(names)
        if round not in rounds:
            there = ", ".join(map(str, rounds)) or "none"
            raise VaultError(f"the vault has no state after round {round} to go back to; it has: {there}")
        if round == rounds[-1]:
            raise VaultError(f"the state after round {round} is the newest: there is nothing to undo")
        old, new = (unpack(storage.get(name_of(number))) for number in (round, rounds[-1]))
        if old.get("keyring") != new.get("keyring"):
            raise VaultError(
                f"the questions were chosen after round {round}: models that were issued since could not be traced any "
                "more if others were chosen. Go back to a later round"
            )
        blobs = {}
        if REPORTS in names:
            reports = [report for report in json.loads(storage.get(REPORTS)) if report["round"] <= round]
            blobs[REPORTS] = json.dumps(reports).encode()
        later = {name_of(number) for number in rounds if number > round}
        storage.commit([{"event": "rewound", "round": round, "from": rounds[-1]}], blobs, drop=later)
