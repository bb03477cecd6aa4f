"""`tramark vault log`, `head`, `backup`, `restore`, `checkpoints` and `rewind`: for a vault that is kept for years."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tramark.cli.common import (
    CHANGED,
    KeyFile,
    VaultPath,
    ask_passphrase,
    console,
    existing_file,
    interactive,
    open_vault,
)
from tramark.errors import one_line

if TYPE_CHECKING:
    from tramark.vault.log import Entry

_DIGEST = re.compile(r"[0-9a-f]{64}")


def log(
    vault: VaultPath,
    event: Annotated[
        str | None, typer.Option(help="Only entries of this event, such as issued, client-joined or restored.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="Only entries about this client.")] = None,
    round: Annotated[int | None, typer.Option(help="Only entries of this round.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each entry as a line of JSON, in full.")] = False,
    key_file: KeyFile = None,
) -> None:
    """Show what was issued to whom, and all else that a vault has logged, oldest first."""
    wanted = {"event": event, "client": client, "round": round}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    found = False
    with open_vault(vault, key_file, readonly=True) as opened:
        for entry in opened.log():
            if all(entry.get(name) == value for name, value in wanted.items()):
                typer.echo(json.dumps(entry) if as_json else _line(entry))
                found = True
    if not found:
        console.print("no entry of the log is like that")


def _line(entry: "Entry") -> str:
    """An entry for people: number, time, event, and what else it says, with digests cut short."""
    from tramark.evidence.published import utc

    said = {name: value for name, value in entry.items() if name not in ("n", "time", "event", "previous")}
    details = "  ".join(f"{name} {_word(value)}" for name, value in said.items())
    return f"{entry['n']:>6}  {utc(entry['time'])}  {one_line(entry['event']):<14}  {details}".rstrip()


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    text = one_line(value if isinstance(value, str) else json.dumps(value))
    return f"{text[:16]}…" if _DIGEST.fullmatch(text) else text


def head(
    vault: VaultPath,
    compare: Annotated[
        str | None, typer.Option(help="A head of this vault that was printed earlier, and kept elsewhere.")
    ] = None,
    key_file: KeyFile = None,
) -> None:
    """Show the number of log entries and the hash of the last one, as one word to keep outside the vault.

    With --compare: exit code 0 if the vault has only gone on since then; 1 if an older copy was put in its place.
    """
    from tramark.vault.log import head_text, read_head_text

    known = None if compare is None else read_head_text(compare)
    with open_vault(vault, key_file, readonly=True) as opened:
        typer.echo(head_text(opened.head))
        problem = None if known is None else opened.set_back(known)
        restored = [entry for entry in opened.log() if entry["event"] == "restored"]
    for entry in restored:
        typer.echo(restored_words(entry))
    if problem:
        typer.echo(problem)
        raise typer.Exit(CHANGED)
    if known:
        typer.echo(f"the vault has all {known[0]} entries that it had")


def restored_words(entry: "Entry") -> str:
    """What an entry about a restored backup means."""
    from tramark.evidence.published import utc

    return (
        f"restored on {utc(entry['time'])} from a backup with {entry['entries']} entries: what was logged after that "
        "backup (models, cases, burned questions) is not here"
    )


def backup(
    vault: VaultPath,
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write. It must not exist.")],
    key_file: KeyFile = None,
) -> None:
    """Write a whole vault into one file, and check that it can be restored. Others may use the vault meanwhile.

    What is sealed stays sealed. The vault's key is not in the file: keep it elsewhere.
    """
    from tramark.vault.backup import write_backup
    from tramark.vault.log import head_text

    with open_vault(vault, key_file, readonly=True) as opened:
        head = write_backup(opened, file)
    typer.echo(f"{file} can be restored with the vault's key, which is not in it; its head is {head_text(head)}")


def restore(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A file that vault backup wrote.")],
    vault: Annotated[Path, typer.Argument(help="The folder to make. It must not exist.")],
    key_file: Annotated[Path | None, existing_file(help="Key file that the vault had when it was backed up.")] = None,
) -> None:
    """Make a vault anew from its backup. It is checked, and its log says that it was restored."""
    from tramark.vault.backup import restore as restored
    from tramark.vault.log import head_text

    prompt = (lambda: ask_passphrase("Passphrase", confirm=False)) if interactive() else None
    with restored(file, vault, key_file=key_file, prompt=prompt) as opened:
        entry = list(opened.log())[-1]
        typer.echo(f"vault {opened.id}, {restored_words(entry)}; its head is {head_text(opened.head)}")


def checkpoints(vault: VaultPath, key_file: KeyFile = None) -> None:
    """List the rounds after which the server's state is kept, oldest first. `rewind` goes back to one of them."""
    with open_vault(vault, key_file, readonly=True) as opened:
        rounds = opened.checkpoints
    for round in rounds:
        typer.echo(f"after round {round}" + (", the newest" if round == rounds[-1] else ""))
    if not rounds:
        console.print("the vault has no server's state yet")


def rewind(
    vault: VaultPath,
    round: Annotated[int, typer.Argument(help="The round after which to go on; `checkpoints` lists them.")],
    key_file: KeyFile = None,
) -> None:
    """Go back to the server's state after an earlier round, such as before a hostile client spoilt the model.

    The log says so. Later states are deleted. Models stay issued, questions burned and error spent.
    """
    with open_vault(vault, key_file) as opened:
        opened.rewind(round)
    typer.echo(f"the server goes on after round {round}; what was issued since can still be traced")
