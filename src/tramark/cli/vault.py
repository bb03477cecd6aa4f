"""`tramark vault`: make a vault, show what is in it, check it, and change its clients or its key."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tramark.cli.common import (
    CHANGED,
    KeyFile,
    VaultPath,
    ask_passphrase,
    console,
    interactive,
    key_for,
    keyring_of,
    open_vault,
    vault_at,
)
from tramark.cli.upkeep import backup, checkpoints, head, log, restore, restored_words, rewind
from tramark.errors import NoKey, SettingError, one_line

if TYPE_CHECKING:
    from tramark.vault.reports import Report

ROUNDS_SHOWN = 10
"""The last rounds that `tramark vault show` lists."""

app = typer.Typer(help="Make, show and check the sealed folder with a federation's secrets.", no_args_is_help=True)
for command in (log, head, backup, restore, checkpoints, rewind):
    app.command()(command)


@app.command()
def create(
    vault: Annotated[Path, typer.Argument(help="The folder to make. It must not exist.")],
    clients: Annotated[str, typer.Option(help="The clients' names, separated by commas.")],
    classes: Annotated[int, typer.Option(help="Number of labels of the model.")],
    input_shape: Annotated[str, typer.Option(help="Shape of one input of the model, such as 1,28,28.")],
    questions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of questions per model. By default, as many as the false-accusation bound needs."
        ),
    ] = None,
    key_file: KeyFile = None,
) -> None:
    """Make a new vault with a keyring for these clients, and its signed commitment."""
    from tramark.keys.keyring import Keyring
    from tramark.vault.lock import KeySource, default_key_file, make_key_file
    from tramark.vault.store import Vault

    try:
        shape = tuple(int(word) for word in input_shape.split(","))
    except ValueError:
        shape = (0,)
    if min(shape) < 1:
        raise SettingError(f"an input shape is positive numbers with commas, such as 1,28,28, not {input_shape!r}")
    names = [name.strip() for name in clients.split(",") if name.strip()]
    keyring = Keyring.generate(clients=names, classes=classes, input_shape=shape, questions=questions)
    try:
        key = key_for(vault, key_file, new=True)
    except NoKey:
        vault.parent.mkdir(parents=True, exist_ok=True)
        key = KeySource(key_file=make_key_file(default_key_file(vault)))
        console.print(f"no passphrase given: the vault's key is in {key.key_file}", highlight=False)
    with Vault.create(vault, keyring, passphrase=key.passphrase, key_file=key.key_file) as made:
        typer.echo(f"vault {made.id} for {len(names)} clients; publish {vault / 'commitment.json'}")


@app.command()
def show(vault: VaultPath, key_file: KeyFile = None) -> None:
    """Show a vault's clients, its log and its public key, but no secret."""
    from tramark.evidence.commitment import signers
    from tramark.evidence.findings import fingerprint

    with open_vault(vault, key_file, readonly=True) as opened:
        plain = opened.sealed_keyring
        entries = list(opened.log())
        issued = [entry for entry in entries if entry["event"] == "issued"]
        last = max((entry["round"] for entry in issued), default=0)
        typer.echo(f"vault        {opened.id}")
        if opened.simulated:
            typer.echo("simulated    its secret comes from a seed: nothing is proven by it")
        *earlier, current = signers(opened.commitments)
        typer.echo(f"public key   {fingerprint(current)}")
        for key in earlier:
            typer.echo(f"  before     {fingerprint(key)}")
        typer.echo(f"clients      {len(plain['clients'])}: {', '.join(plain['clients'])}")
        if plain["departed"]:
            typer.echo(f"departed     {', '.join(plain['departed'])}")
        count, common = plain["questions"], len(plain.get("common", ()))
        asked = f"{count} questions" + (f" and {common} common ones" if common else "")
        typer.echo(f"answers      {plain['assignment']}, {asked}, {plain['classes']} classes")
        typer.echo(f"log          {len(entries)} entries, {len(issued)} models issued, the last in round {last}")
        for entry in entries:
            if entry["event"] == "restored":
                typer.echo(f"             {restored_words(entry)}")
        typer.echo(f"sealed       {', '.join(opened.names) or 'the keyring alone'}")
        if reports := opened.reports():
            typer.echo("\n".join(["", *_table(reports[-ROUNDS_SHOWN:])]))


def _table(reports: "Sequence[Report]") -> Iterator[str]:
    """The lines of a table of rounds: who took part, and what was left of the marks in what came back."""
    from tramark.vault.reports import survival_of

    yield "round  clients  refused  marked  survival: mean  least  margin left"
    for report in reports:
        left = survival_of(report)
        mean, least, margin = "–", "–", "–"
        if left:
            mean, least = f"{sum(left) / len(left):.0%}", f"{min(left):.0%}"
            margin = f"{report['survived'].get('margin', float('nan')):.1f}"
        sizes = (len(report.get(name, ())) for name in ("used", "refused"))
        marked = "yes" if report.get("marked") else "no"
        yield "{:>5}  {:>7}  {:>7}  {:>6}  {:>14}  {:>5}  {:>11}".format(
            report["round"], *sizes, marked, mean, least, margin
        )


@app.command("audit")
def check(vault: VaultPath, key_file: KeyFile = None) -> None:
    """Check every file of a vault. Exit code 0: nothing was changed; 1: it prints a line for each problem."""
    from tramark.vault.audit import audit

    place = vault_at(vault)
    key = key_for(place, key_file)
    problems = audit(place, passphrase=key.passphrase, key_file=key.key_file)
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(CHANGED)
    typer.echo("clean: nothing was changed, removed or reordered")


@app.command()
def cases(
    vault: VaultPath,
    limit: Annotated[
        float | None, typer.Option(help="Set the most error that all traces together may spend, such as 1e-5.")
    ] = None,
    key_file: KeyFile = None,
) -> None:
    """List all traces with a vault, and the error that they spend together."""
    with open_vault(vault, key_file, readonly=True) as opened:
        book = opened.cases
        if limit is not None:
            book.set_limit(limit)
        for case in book.all():
            found = "not finished" if case.closed is None else case.closed.finding
            names = f" ({', '.join(case.closed.clients)})" if case.closed and case.closed.clients else ""
            spent = f"{case.false_accusation:g}" if case.false_accusation else "no bound"
            suspect = one_line(case.suspect.name)
            typer.echo(f"{case.number:>4}  {case.opened[:19]}  {spent:>8}  {one_line(found + names)}  {suspect}")
        allowed = "no limit" if book.limit is None else f"limit {book.limit:g}"
        typer.echo(f"error spent over the life of the vault: {book.spent:g} ({allowed})")
        for client, questions in book.burned.items():
            typer.echo(f"burned for {one_line(client)}: {len(questions)} questions")


@app.command()
def add_client(
    vault: VaultPath, client: Annotated[str, typer.Argument(help="The new client's name.")], key_file: KeyFile = None
) -> None:
    """Give a new client a key, and sign a further commitment. The other clients' keys stay as they are."""
    with open_vault(vault, key_file) as opened:
        opened.save_keyring(keyring_of(opened, None).join(client))
    typer.echo(f"{client} has a key; publish the new commitment.json")


@app.command()
def timestamp(
    vault: VaultPath,
    tsa: Annotated[str, typer.Option(help="URL of a time-stamping authority (RFC 3161).")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="File for the time stamp, to be published.")],
    key_file: KeyFile = None,
) -> None:
    """Have an authority stamp the newest commitment, so that its date is not only the operator's word."""
    from tramark.vault.files import replace_file
    from tramark.vault.timestamps import stamp, tokens

    with open_vault(vault, key_file) as opened:
        time, newest = stamp(opened, tsa), opened.commitments[-1]
        replace_file(out, tokens(opened)[newest.digest])
    typer.echo(f"commitment {newest.number} ({newest.digest}) existed on {time:%Y-%m-%d %H:%M:%S} UTC: publish {out}")


@app.command()
def reveal(
    vault: VaultPath,
    value: Annotated[str, typer.Argument(help="The value (hex) of the beacon that the last commitment names.")],
    key_file: KeyFile = None,
) -> None:
    """Add the value of a public beacon to the answers that wait for it."""
    with open_vault(vault, key_file) as opened:
        try:
            opened.reveal(bytes.fromhex(value))
        except ValueError as error:
            raise SettingError(f"{value!r} is no beacon's value: {error}") from None
    typer.echo("the answers are drawn")


@app.command()
def rotate(
    vault: VaultPath,
    key_file: KeyFile = None,
    new_key_file: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Key file that opens the vault from now on. It is made if missing."),
    ] = None,
    signing_key: Annotated[
        bool,
        typer.Option("--signing-key", help="Change instead the key that signs commitments and evidence."),
    ] = False,
) -> None:
    """Change a vault's passphrase or key file, or the key that it signs with.

    Without --new-key-file, the new passphrase is taken from TRAMARK_NEW_PASSPHRASE or asked for.
    A new signing key is signed by the old one, so whoever trusts the old one can follow.
    """
    from tramark.vault.lock import make_key_file

    if signing_key:
        if new_key_file is not None:
            raise SettingError("--signing-key and --new-key-file change different keys: give one of them at a time")
        _rotate_signing_key(vault, key_file)
        return
    with open_vault(vault, key_file) as opened:
        if new_key_file is not None:
            opened.rotate(key_file=new_key_file if new_key_file.exists() else make_key_file(new_key_file))
        else:
            opened.rotate(passphrase=_new_passphrase())
    typer.echo("the vault has a new key; the old one does not open it any more")


def _rotate_signing_key(vault: Path, key_file: Path | None) -> None:
    from tramark.evidence.findings import fingerprint

    with open_vault(vault, key_file) as opened:
        old, new = map(fingerprint, opened.rotate_signing_key())
        typer.echo(
            f"old key  {old}\nnew key  {new}\nboth have signed it; publish {opened.path / 'commitment.json'} again"
        )


def _new_passphrase() -> str:
    given = os.environ.get("TRAMARK_NEW_PASSPHRASE")
    if given is None and interactive():
        given = ask_passphrase("New passphrase", confirm=True)
    if not given:
        raise SettingError("no new key: use --new-key-file, or give a passphrase in TRAMARK_NEW_PASSPHRASE")
    return given
