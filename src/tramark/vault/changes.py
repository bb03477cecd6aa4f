"""How a keyring may change once its vault is made: clients join and leave, questions are chosen and retouched."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from tramark.errors import VaultError
from tramark.vault.log import Entry

_MAY_CHANGE = {"clients", "departed", "chosen", "questions", "triggers", "beacons", "common"}


class Changes(NamedTuple):
    """What differs between two versions of a keyring, as log entries."""

    committed: list[Entry]
    """New clients and other questions: they need a further commitment."""
    noted: list[Entry]
    """Clients that left or came back: the log alone has to say so."""
    retouched: bool
    """Whether the chosen questions look different."""


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Changes:
    """The changes from one keyring (as plain values) to another; `VaultError` if more differs than may."""
    known = old["clients"]
    (source, pictures), (new_source, new_pictures) = _source(old), _source(new)
    if (
        source != new_source
        or any(old[name] != new[name] for name in old.keys() - _MAY_CHANGE)
        or new["clients"][: len(known)] != known
    ):
        raise VaultError("this is another keyring: only its clients and its choice of questions may change")
    retouched = pictures != new_pictures
    committed: list[Entry] = [{"event": "client-joined", "client": client} for client in new["clients"][len(known) :]]
    common, had = new.get("common", []), old.get("common", [])
    if common and not had:
        raise VaultError("a vault's federation has a key of its own from the beginning, or none: make a new vault")
    if new["chosen"] != old["chosen"] or common != had or retouched:
        chosen: Entry = {"event": "questions-chosen", "questions": new["chosen"]}
        committed.append(chosen | ({"common": common} if common else {}))
    away, gone = set(old["departed"]), set(new["departed"])
    noted: list[Entry] = [{"event": "client-joined", "client": client} for client in sorted(away - gone)]
    noted += [{"event": "client-left", "client": client} for client in sorted(gone - away)]
    return Changes(committed, noted, retouched)


def beacons_after(
    old: Mapping[str, Any], new: Mapping[str, Any], committed: Collection[Entry], *, named: bool
) -> list[list[Any]]:
    """From which client on answers are shifted by which beacon's key, in a keyring that is committed to.

    `named` says whether the new commitment names a beacon. Its value is not out yet, so its key is empty.
    """
    known: list[list[Any]] = old.get("beacons", [])
    if new.get("beacons", []) != known:
        raise VaultError(
            "this keyring's answers are not those of the vault, to which a beacon was added: use vault.keyring"
        )
    if any(event["event"] == "questions-chosen" for event in committed):
        return [[0, ""]] if named else []
    joined = len(new["clients"]) > len(old["clients"])
    if joined and named != bool(known):
        raise VaultError(
            "clients that join need a beacon of their own if the questions were settled with one, and none otherwise"
        )
    return [*known, [len(old["clients"]), ""]] if joined and named else known


def _source(keyring: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """How a keyring's questions are made, and the pictures of those that were retouched."""
    source = dict(keyring["triggers"])
    return source, source.pop("retouched", {})
