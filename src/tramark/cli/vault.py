"""`tramark vault`: make a vault, look into it, and check it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tramark.cli.common import KeyFile, VaultPath, console, interactive, key_for, vault_at
from tramark.cli.trace import keyring_of
from tramark.errors import NoKey, SettingError
from tramark.evidence.findings import fingerprint
from tramark.keys.keyring import Keyring
from tramark.vault.audit import audit
from tramark.vault.lock import default_key_file, make_key_file
from tramark.vault.store import Vault

app = typer.Typer(help="The sealed directory in which a federation's secrets live.", no_args_is_help=True)


@app.command()
def create(
    vault: Annotated[Path, typer.Argument(help="The directory to make.")],
    clients: Annotated[str, typer.Option(help="The clients' names, separated by commas.")],
    classes: Annotated[int, typer.Option(help="How many labels the model has.")],
    input_shape: Annotated[str, typer.Option(help="What the model is fed, such as 1,28,28.")],
    questions: Annotated[
        int | None, typer.Option(help="Questions per model; as many as the bound wants, unless told.")
    ] = None,
    key_file: KeyFile = None,
) -> None:
    """Make a keyring with a fresh secret and seal it, with its signed commitment, in a new vault."""
    try:
        shape = tuple(int(word) for word in input_shape.split(","))
    except ValueError:
        raise SettingError(f"an input shape is numbers with commas, such as 1,28,28, not {input_shape!r}") from None
    names = [name.strip() for name in clients.split(",") if name.strip()]
    keyring = Keyring.generate(clients=names, classes=classes, input_shape=shape, questions=questions)
    try:
        key = key_for(vault, key_file, new=True)
    except NoKey:
        vault.parent.mkdir(parents=True, exist_ok=True)
        key_file = make_key_file(default_key_file(vault))
        key = key_for(vault, key_file)
        console.print(f"no passphrase given: the vault's key is in {key_file}", highlight=False)
    with Vault.create(vault, keyring, passphrase=key.passphrase, key_file=key.key_file) as made:
        typer.echo(f"vault {made.id} for {len(names)} clients; publish {vault / 'commitment.json'}")


@app.command()
def show(vault: VaultPath, key_file: KeyFile = None) -> None:
    """Show what is in a vault, and nothing secret."""
    with _open(vault, key_file, readonly=True) as opened:
        plain = opened.sealed_keyring
        entries = list(opened.log())
        issued = [entry for entry in entries if entry["event"] == "issued"]
        last = max((entry["round"] for entry in issued), default=0)
        typer.echo(f"vault        {opened.id}")
        typer.echo(f"public key   {fingerprint(opened.commitments[0].to_dict()['public_key'])}")
        typer.echo(f"clients      {len(plain['clients'])}: {', '.join(plain['clients'])}")
        if plain["departed"]:
            typer.echo(f"departed     {', '.join(plain['departed'])}")
        typer.echo(f"answers      {plain['assignment']}, {plain['questions']} questions, {plain['classes']} classes")
        typer.echo(f"log          {len(entries)} entries, {len(issued)} models issued, the last in round {last}")
        typer.echo(f"sealed       {', '.join(opened.names) or 'the keyring alone'}")


@app.command("audit")
def check(vault: VaultPath, key_file: KeyFile = None) -> None:
    """Check every file of a vault: exit code 0 if nothing was changed, 1 with a line for each problem."""
    place = vault_at(vault)
    key = key_for(place, key_file)
    problems = audit(place, passphrase=key.passphrase, key_file=key.key_file)
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    typer.echo("clean: nothing was changed, removed or reordered")


@app.command()
def add_client(
    vault: VaultPath, client: Annotated[str, typer.Argument(help="The new client's name.")], key_file: KeyFile = None
) -> None:
    """Give a new client a key. Nobody else's changes; a further commitment is signed."""
    with _open(vault, key_file) as opened:
        opened.save_keyring(keyring_of(opened, None).join(client))
    typer.echo(f"{client} has a key; publish the new commitment.json")


@app.command()
def rotate(
    vault: VaultPath,
    key_file: KeyFile = None,
    new_key_file: Annotated[
        Path | None, typer.Option(help="Lock the vault with this key file from now on; made if absent.")
    ] = None,
) -> None:
    """Change the passphrase or key file. The new passphrase comes from TRAMARK_NEW_PASSPHRASE or a prompt."""
    with _open(vault, key_file) as opened:
        if new_key_file is not None:
            opened.rotate(key_file=new_key_file if new_key_file.exists() else make_key_file(new_key_file))
        else:
            opened.rotate(passphrase=_new_passphrase())
    typer.echo("the vault has a new key; the old one does not open it any more")


def _new_passphrase() -> str:
    given = os.environ.get("TRAMARK_NEW_PASSPHRASE")
    if given is None and interactive():
        given = typer.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True)
    if not given:
        raise SettingError("no new key: use --new-key-file, or give a passphrase in TRAMARK_NEW_PASSPHRASE")
    return given


def _open(path: Path, key_file: Path | None, *, readonly: bool = False) -> Vault:
    place = vault_at(path)
    key = key_for(place, key_file)
    return Vault.open(place, passphrase=key.passphrase, key_file=key.key_file, readonly=readonly)
