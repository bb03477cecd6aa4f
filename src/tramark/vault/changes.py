"""How a keyring may change once its vault is made: clients join and leave, questions are chosen and retouched."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tramark.errors import VaultError
from tramark.vault.log import Entry

_MAY_CHANGE = {"clients", "departed", "chosen", "questions", "triggers"}


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
    if new["chosen"] != old["chosen"] or retouched:
        committed.append({"event": "questions-chosen", "questions": new["chosen"]})
    away, gone = set(old["departed"]), set(new["departed"])
    noted: list[Entry] = [{"event": "client-joined", "client": client} for client in sorted(away - gone)]
    noted += [{"event": "client-left", "client": client} for client in sorted(gone - away)]
    return Changes(committed, noted, retouched)


def _source(keyring: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """How a keyring's questions are made, and the pictures of those that were retouched."""
    source = dict(keyring["triggers"])
    return source, source.pop("retouched", {})
