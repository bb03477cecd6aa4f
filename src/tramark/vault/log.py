"""The log: what was issued to whom, one entry a line, each line with the hash of the line before.

Anybody can read it and follow the chain. The head says how long it is and which hash it ends with, so a forger who
chains all entries anew is noticed.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tramark.errors import Damaged, SettingError, one_line
from tramark.evidence.commitment import canonical
from tramark.vault.head import GENESIS, LOG, Head

Entry = dict[str, Any]

_HEAD_TEXT = re.compile(r"[0-9]{1,12}:[0-9a-f]{64}")


def issued(round: int, client: str, model: str, *, marked: bool | None = None) -> Entry:
    """The log entry of one issued model; `model` is its `state_digest`, `marked` says whether it has a mark."""
    entry: Entry = {"event": "issued", "round": round, "client": client, "model": model}
    return entry if marked is None else entry | {"marked": marked}


def chained(entries: Iterable[Entry], head: Head, time: str) -> list[bytes]:
    """The lines of new entries, numbered and chained to what the log has."""
    lines, previous = [], head.hash
    for number, entry in enumerate(entries, head.entries):
        if not isinstance(entry.get("event"), str) or entry.keys() & {"n", "time", "previous"}:
            raise SettingError("a log entry has an event, and leaves n, time and previous to the vault")
        lines.append(canonical({**entry, "n": number, "time": time, "previous": previous}) + b"\n")
        previous = line_hash(lines[-1])
    return lines


def entry_of(line: bytes) -> Entry | None:
    """The entry of a line; None unless the line is exactly what the vault would have written for it."""
    try:
        entry = json.loads(line)
        exact = canonical(entry) + b"\n" == line
    except (ValueError, RecursionError):
        return None
    known = exact and isinstance(entry, dict) and type(entry.get("n")) is int and "previous" in entry
    return entry if known else None


def line_hash(line: bytes) -> str:
    """The hash by which the next line names this one."""
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()


def read_lines(path: Path, head: Head, *, everything: bool = False) -> Iterator[bytes]:
    """The lines that the head acknowledges, with `everything` those behind them too; then the pending lines."""
    left = head.written
    try:
        with (path / LOG).open("rb") as log:
            for line in log:
                if left <= 0 and not everything:
                    break
                yield line
                left -= len(line)
    except FileNotFoundError:
        raise Damaged(f"{LOG} is missing") from None
    if head.pending:
        yield from head.pending.lines.encode().splitlines(keepends=True)


def read_entries(path: Path, head: Head) -> Iterator[Entry]:
    """All entries, oldest first. A log that is not what was written raises `Damaged`."""
    previous = GENESIS
    for number, line in enumerate(read_lines(path, head)):
        entry = entry_of(line)
        if entry is None or (entry["n"], entry["previous"]) != (number, previous):
            raise Damaged(f"{LOG}: entry {number} is not what was written: audit the vault")
        previous = line_hash(line)
        yield entry
    if previous != head.hash:
        raise Damaged(f"{LOG}: the last entry is not the last one written: audit the vault")


def head_text(head: tuple[int, str]) -> str:
    """A vault's head as one word, to be kept elsewhere.

    >>> head_text((2, "ab" * 32)) == "2:" + "ab" * 32
    True
    """
    return f"{head[0]}:{head[1]}"


def read_head_text(text: str) -> tuple[int, str]:
    """The head that `head_text` wrote."""
    if not _HEAD_TEXT.fullmatch(text):
        raise SettingError(f"a head is a number, a colon and 64 hexadecimal digits, not {one_line(text)!r}")
    entries, _, last = text.partition(":")
    return int(entries), last


def set_back(path: Path, head: Head, known: tuple[int, str]) -> str | None:
    """What shows that a vault was set back since its head was `known`, in words; None if nothing does."""
    entries, last = known
    if entries > head.entries:
        return f"the log had {entries} entries and has {head.entries}: this is an older copy of the vault"
    # The hash of the log's beginning is what the entry behind it names.
    then = head.hash
    for entry in read_entries(path, head):
        if entry["n"] == entries:
            then = entry["previous"]
    if then != last:
        return f"the first {entries} entries of the log are not those that it had: it was set back, then written to"
    return None
