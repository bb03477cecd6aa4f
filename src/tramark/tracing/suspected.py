"""Who is suspected, and how it is fed and read, as a case records it; and whether it is a model that was issued."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from safetensors.torch import load_file
from torch import Tensor, nn

from tramark.evidence.case import Identical, Suspected
from tramark.fleet.travels import frozen_part
from tramark.suspects.base import Suspect
from tramark.suspects.conventions import Conventions, Prepare
from tramark.suspects.http import HttpSuspect
from tramark.suspects.loaded import LoadedSuspect
from tramark.suspects.module import ModuleSuspect
from tramark.vault.commit import state_digest
from tramark.vault.log import Entry

_SECRET = {"headers"}
"""Fields that are not recorded: they may hold a token."""


def suspected_at(target: str | Path) -> Suspected:
    """The suspect at a path or URL. A URL loses its password and its query, which may hold a token."""
    if "://" in str(target):
        parts = urlsplit(str(target))
        return Suspected("address", f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
    path = Path(target)
    if path.is_file():
        return Suspected("file", path.name, _file_digest(path))
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = "".join(f"{_file_digest(file)}  {file.relative_to(path).as_posix()}\n" for file in files)
    return Suspected("folder", path.name, hashlib.sha256(lines.encode()).hexdigest())


def suspected_of(suspect: nn.Module | Suspect) -> Suspected:
    """A suspect of which nothing else is known. Whether two of a kind that we do not know are the same is not told."""
    if isinstance(suspect, HttpSuspect):
        return suspected_at(suspect.client.url)
    module = _module(suspect)
    if module is None:
        return Suspected("module", type(suspect).__name__)
    return Suspected("module", type(module).__name__, state_digest(module.state_dict()))


def conventions_of(suspect: nn.Module | Suspect) -> dict[str, Any]:
    """How a suspect is asked and read, as plain values without fractions; no token among them."""
    named = {name: getattr(suspect, name) for name in ("conventions", "template") if hasattr(suspect, name)}
    values = {"adapter": type(suspect).__name__, **{name: plain(value) for name, value in named.items()}}
    if isinstance(suspect, HttpSuspect):
        # The query is part of what is asked, but may hold a token.
        values["url"] = hashlib.sha256(suspect.client.url.encode()).hexdigest()
    return values


def conventions_in(recorded: Mapping[str, Any], *, prepare: Prepare | None = None) -> Conventions:
    """The conventions that a case records as plain values; `prepare` is used if they say that it was."""
    values = {name: value for name, value in recorded.items() if name != "prepare"}
    for name in ("value_range", "mean", "std"):
        if values.get(name) is not None:
            values[name] = tuple(map(float, values[name]))
    if values.get("threshold") is not None:
        values["threshold"] = float(values["threshold"])
    return Conventions(**values, prepare=prepare if recorded.get("prepare", True) else None)


def confinement_of(suspect: nn.Module | Suspect) -> tuple[str, ...] | None:
    """What keeps a suspect from a file from doing harm; None for what is no file."""
    return suspect.confinement if isinstance(suspect, LoadedSuspect) else None


def as_issued(suspect: nn.Module | Suspect, entries: Iterable[Entry]) -> tuple[Identical, ...]:
    """The rounds of a vault's log in which the suspect was issued, bit by bit as it is."""
    digests = {state_digest(part) for part in _states(suspect) if part}
    rounds: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry["event"] == "issued":
            rounds.setdefault(entry["round"], []).append(entry)
    found = []
    for number, issued in rounds.items():
        same = [entry for entry in issued if entry["model"] in digests]
        if same:
            clients = tuple(dict.fromkeys(entry["client"] for entry in same))
            found.append(Identical(number, clients, len(same) == len(issued) > 1, same[0].get("marked")))
    return tuple(found)


def _states(suspect: nn.Module | Suspect) -> list[Mapping[str, Tensor]]:
    """What may have been sent of a suspect: all of it, or only the part that is trained.

    Of files, those of safetensors are read, which is safe to do beside the vault.
    """
    module = _module(suspect)
    if module is not None:
        state, frozen = module.state_dict(), frozen_part(module)
        return [state, {name: value for name, value in state.items() if name not in frozen}]
    if isinstance(suspect, LoadedSuspect) and suspect.path.suffix.lower() == ".safetensors":
        return [load_file(suspect.path)]
    return []


def _module(suspect: nn.Module | Suspect) -> nn.Module | None:
    if isinstance(suspect, ModuleSuspect):
        return suspect.module
    return suspect if isinstance(suspect, nn.Module) else None


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(value: Any) -> Any:
    """A value for canonical JSON: floats as text, functions as true, no field that may hold a token."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value) if one.name not in _SECRET}
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    # How a keyring's source prepares inputs belongs to the keyring: it is recorded that it does.
    return True if callable(value) else repr(value) if isinstance(value, float) else value
