"""What all commands share: where to talk to the user, and how to find a vault's key."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from tramark.errors import SettingError
from tramark.vault.lock import KeySource, find_key

console = Console(stderr=True)

DataDir = Annotated[Path | None, typer.Option(help="Folder with data files, looked into before any download.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="Key file of the vault; else TRAMARK_PASSPHRASE, the key file beside the vault, or a prompt."),
]
VaultPath = Annotated[Path, typer.Argument(help="The vault's directory, or that of a run which holds one.")]


def vault_at(path: Path) -> Path:
    """The vault itself, given it or the folder of a run."""
    return path / "vault" if (path / "vault").is_dir() else path


def key_for(path: Path, key_file: Path | None, *, new: bool = False) -> KeySource:
    """A vault's key, asked for at the terminal if it is nowhere else."""
    prompt = (
        (lambda: typer.prompt("Passphrase", hide_input=True, confirmation_prompt=new, err=True))
        if interactive()
        else None
    )
    return find_key(path, key_file=key_file, prompt=prompt)


def pairs(option: str, given: Sequence[str]) -> dict[str, Any]:
    """What was given as name=value, with values as in JSON, or as words."""
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


def interactive() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def device_named(name: str) -> torch.device:
    """The device of that name, or the best there is."""
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except RuntimeError as error:
            raise SettingError(f"no device {name!r} here: {str(error).splitlines()[0]}") from None
    return torch.accelerator.current_accelerator() or torch.device("cpu")
