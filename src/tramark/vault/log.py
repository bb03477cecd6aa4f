"""vault.log"""

import hashlib
import json
from typing import Any

from tramark.evidence.commitment import canonical

Entry = dict[str, Any]


GENESIS = "0" * 64


def issued(round: int, client: str, model: str) -> Entry:
    """The log entry of one issued model; `model` is its `state_digest`."""
    return {"event": "issued", "round": round, "client": client, "model": model}


def line_of(entry: Entry, number: int, time: str, previous: str) -> bytes:
    if not isinstance(entry.get("event"), str) or entry.keys() & {"n", "time", "previous"}:
        raise ValueError("a log entry has an event, and leaves n, time and previous to the vault")
    return canonical({**entry, "n": number, "time": time, "previous": previous}) + b"\n"


def entry_of(line: bytes) -> Entry | None:
    """The entry of a line, if the line is exactly what the vault would have written for it."""
    try:
        entry = json.loads(line)
        exact = canonical(entry) + b"\n" == line
    except (ValueError, RecursionError):
        return None
    known = exact and isinstance(entry, dict) and type(entry.get("n")) is int and "previous" in entry
    return entry if known else None


def line_hash(line: bytes) -> str:
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()
