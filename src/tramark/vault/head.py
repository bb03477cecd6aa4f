"""The head of a vault: one small sealed file that says what belongs to the vault.

The names of the vault's other files are here too.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Self

from tramark.evidence.commitment import canonical

HEADER, HEAD, LOG, PUBLIC, LOCK, SEALED = (
    "vault.json",
    "head.sealed",
    "log.jsonl",
    "commitment.json",
    "lock",
    "sealed",
)
CASES_LOCK, COMMIT_LOCK = "cases.lock", "commit.lock"
"""Locks that are made when they are first needed: of whoever writes cases, and of each commit while it lasts."""

GENESIS = "0" * 64
"""Stands for the hash of the entry before the first."""


@dataclass(frozen=True)
class Pending:
    """Lines that the log gets at `offset`, and whether the public commitment changes."""

    offset: int
    lines: str
    publish: bool


@dataclass(frozen=True)
class Head:
    """The state of a vault.

    Parameters
    ----------
    entries, length, hash : of the log: the number of entries, of bytes, and the hash of the last line.
    sealed : the current version of each sealed file, by name.
    pending : what was decided, but perhaps not yet carried out.
    """

    entries: int = 0
    length: int = 0
    hash: str = GENESIS
    sealed: Mapping[str, str] = field(default_factory=dict)
    pending: Pending | None = None

    @property
    def written(self) -> int:
        """The bytes of the log that the file has for certain: all but the pending ones."""
        return self.pending.offset if self.pending else self.length

    def label(self, name: str) -> str:
        """The path, inside the vault, of the current version of a sealed file."""
        return sealed_label(name, self.sealed[name])

    def to_bytes(self) -> bytes:
        """The content of the head's file."""
        return canonical(asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The head that `to_bytes` wrote."""
        plain = json.loads(content)
        if plain["pending"] is not None:
            plain["pending"] = Pending(**plain["pending"])
        return cls(**plain)


def sealed_label(name: str, version: str) -> str:
    """The path of a sealed file inside the vault."""
    return f"{SEALED}/{name}.{version}"
