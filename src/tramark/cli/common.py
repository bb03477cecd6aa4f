"""What all commands share: exit codes, common options, where to talk to the user, and how to find a vault's key."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from tramark.errors import NoKey, SettingError, one_line

if TYPE_CHECKING:
    import torch

    from tramark.keys.keyring import Keyring
    from tramark.vault.lock import KeySource
    from tramark.vault.store import Vault

Kind = TypeVar("Kind")

console = Console(stderr=True)

CHANGED = INCOMPLETE = 1
MISTAKE, NOBODY, INCONCLUSIVE, BUG, INTERRUPTED = 2, 3, 4, 70, 130
FORGED, UNPROVEN, UNREADABLE, UNREACHABLE, REFUSED, OURS = 5, 6, 7, 8, 9, 10

EXIT = {"client": 0, "several": 0, "federation": OURS, "nobody": NOBODY, "inconclusive": INCONCLUSIVE}
"""The exit code of `trace` for each kind of verdict."""

EXIT_CODES = {
    0: "trace: a client is named; evidence verify: the finding is proven; other commands: done",
    CHANGED: "vault audit, vault head: the vault was changed; study, or trace of several suspects: something failed",
    MISTAKE: "not possible: bad input, a missing file, or a suspect that cannot be asked in this way",
    NOBODY: "trace: nobody's mark was found",
    INCONCLUSIVE: "trace, probe: inconclusive: too few answers, too little left of the marks, or probably fed wrongly",
    FORGED: "evidence: forged: something does not hold",
    UNPROVEN: "evidence: in order, but not proven, or the suspect answers differently now",
    UNREADABLE: "evidence: no evidence, or of an unknown version",
    UNREACHABLE: "the suspect does not answer, or may be asked no more: go on later",
    REFUSED: "the vault refuses: wrong or no key, damaged, in use, or its error is spent",
    OURS: "trace: the model comes from this federation, but no client can be named",
    BUG: "a bug in tramark",
    INTERRUPTED: "interrupted",
}
"""The exit codes of all commands."""

EPILOG = "Exit codes:\n\n" + "\n\n".join(f"{code:<3}  {meaning}" for code, meaning in EXIT_CODES.items())


def existing_file(*names: str, help: str) -> Any:
    """An option for a file that must exist."""
    return typer.Option(*names, exists=True, dir_okay=False, help=help)


def existing_folder(*names: str, help: str) -> Any:
    """An option for a folder that must exist."""
    return typer.Option(*names, exists=True, file_okay=False, help=help)


DataDir = Annotated[
    Path | None,
    existing_folder(help="Folder with data sets as .npz files. It is searched before anything is downloaded."),
]
KeyFile = Annotated[
    Path | None,
    existing_file(
        help="Key file of the vault. Without it: the passphrase in TRAMARK_PASSPHRASE, else the key file beside the "
        "vault, else a prompt."
    ),
]
VaultPath = Annotated[
    Path,
    typer.Argument(exists=True, file_okay=False, help="The vault's folder, or the folder of a run that has a vault."),
]
Device = Annotated[
    str, typer.Option(help="Device to compute on: cpu, cuda, mps … With auto, an accelerator if there is one.")
]


def vault_at(path: Path) -> Path:
    """The vault's own folder, given that folder or the folder of a run."""
    return path / "vault" if (path / "vault").is_dir() else path


def key_for(path: Path, key_file: Path | None, *, new: bool = False) -> "KeySource":
    """A vault's key. At a terminal, the user is asked for a passphrase if no key is found."""
    from tramark.vault.lock import find_key, read_header

    prompt = (lambda: ask_passphrase("Passphrase", confirm=new)) if interactive() else None
    try:
        return find_key(path, key_file=key_file, prompt=prompt)
    except NoKey:
        if not new:
            read_header(path)  # says so if the folder holds no vault at all
        raise


def open_vault(path: Path, key_file: Path | None, *, readonly: bool = False) -> "Vault":
    """The vault at a path, or in the run at that path, opened with its key."""
    from tramark.vault.store import Vault

    place = vault_at(path)
    key = key_for(place, key_file)
    return Vault.open(place, passphrase=key.passphrase, key_file=key.key_file, readonly=readonly)


def keyring_of(vault: "Vault", data_dir: Path | None) -> "Keyring":
    """A vault's keyring. If its questions are images of a data set, that data set is loaded."""
    from tramark.lab import data

    plain = vault.sealed_keyring
    if plain["triggers"]["kind"] == "images":
        source = data.load(plain["triggers"]["name"], data_dir=data_dir)
        vault.use_images((source.train_inputs, source.train_labels))
    return vault.keyring


def ask_passphrase(text: str, *, confirm: bool) -> str:
    """A passphrase typed at the terminal."""
    try:
        return str(typer.prompt(text, hide_input=True, confirmation_prompt=confirm, err=True))
    except typer.Abort:
        # typer reports Ctrl-C at a prompt as an exit code of its own.
        raise KeyboardInterrupt from None


def pairs(option: str, given: Sequence[str]) -> dict[str, Any]:
    """Options given as name=value, as a dictionary. Values are read as JSON, or else as text."""
    found: dict[str, Any] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator:
            raise SettingError(f"{option} {pair}: write it as name=value")
        try:
            found[name.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            found[name.replace("-", "_")] = value
    return found


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise SettingError(f"{path} is not JSON: {one_line(error)}") from None


def read_as(kind: type[Kind], path: Path) -> Kind:
    """An object of that class, with the fields that a JSON file gives."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise SettingError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    try:
        return kind(**value)
    except TypeError as error:
        raise SettingError(f"{path}: {one_line(error)}") from None


def interactive() -> bool:
    """Whether there is a user at a terminal who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def device_named(name: str) -> "torch.device":
    """The device of that name; for auto, the accelerator if there is one."""
    import torch

    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            raise SettingError(f"no device {name!r} here: {str(error).splitlines()[0]}") from None
    # A torch that is built for CUDA names it even where there is no GPU.
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return there or torch.device("cpu")
