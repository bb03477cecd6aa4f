"""`tramark evidence`: make a case's statement and annex, sign a statement, and check evidence without the vault."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tramark.cli.common import (
    FORGED,
    UNPROVEN,
    UNREADABLE,
    DataDir,
    KeyFile,
    VaultPath,
    existing_file,
    interactive,
    keyring_of,
    open_vault,
    read_json,
)
from tramark.cli.desk import HeaderOption, ModelOption, RateOption, TokenOption
from tramark.errors import SettingError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

    from tramark.evidence.findings import Findings

CODES = {
    0: "the finding is proven",
    FORGED: "forged: something does not hold",
    UNPROVEN: "in order, but the finding is not proven: the output says what lacks",
    UNREADABLE: "this is no evidence, or of an unknown version",
}

app = typer.Typer(help="Make, sign and check the evidence of a case.", no_args_is_help=True)

CaseNumber = Annotated[int, typer.Argument(help="The case's number in the vault.")]
Out = Annotated[Path, typer.Option(dir_okay=False, help="The file to write.")]
AnnexFile = Annotated[Path | None, existing_file(help="The annex that belongs to the statement.")]
DecryptKey = Annotated[
    Path | None, existing_file(help="Your X25519 private key (PEM), if the annex is encrypted to it.")
]


@app.command()
def statement(vault: VaultPath, case: CaseNumber, out: Out, key_file: KeyFile = None, data_dir: DataDir = None) -> None:
    """Write the signed statement of a closed case. It can be published: it holds no question and no answer."""
    from tramark.tracing.handover import make_statement
    from tramark.vault.files import replace_file

    with open_vault(vault, key_file, readonly=True) as opened:
        keyring_of(opened, data_dir)
        replace_file(out, make_statement(opened, opened.cases.get(case)).text())
    typer.echo(f"the statement of case {case} is in {out}")


@app.command()
def annex(
    vault: VaultPath,
    case: CaseNumber,
    out: Out,
    to: Annotated[
        Path | None, existing_file(help="The expert's X25519 public key (PEM), to which the annex is encrypted.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: burn the questions that the annex opens.")] = False,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
) -> None:
    """Write the confidential annex that proves a statement. The answers that it opens are never counted again."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    from tramark.evidence.federation import FEDERATION
    from tramark.tracing.handover import hand_over, make_annex, opened_by
    from tramark.vault.files import replace_file

    expert = None if to is None else _public_key(to)
    if expert is not None and not isinstance(expert, X25519PublicKey):
        raise SettingError(f"{to} is no X25519 key: make one with `openssl genpkey -algorithm X25519`")
    with open_vault(vault, key_file, readonly=True) as opened:
        keyring, record = keyring_of(opened, data_dir), opened.cases.get(case)
        for client, questions in opened_by(make_annex(opened, record)).items():
            burned = len(set(questions) - set(opened.cases.burned.get(client, ())))
            whose, all_of = ("the common", keyring.common) if client == FEDERATION else (f"{client}'s", keyring.chosen)
            typer.echo(f"{burned} of {whose} {len(all_of)} questions are burned by this")
        if not yes:
            if not interactive():
                raise SettingError("say --yes if these questions may be burned: nothing was written")
            typer.confirm("Write the annex?", abort=True, err=True)
        replace_file(out, hand_over(opened, record, expert))
    typer.echo(f"the annex of case {case} is in {out}")


@app.command()
def sign(
    statement: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The statement to sign.")],
    key: Annotated[Path, existing_file("--key", help="Your Ed25519 private key (PEM).")],
) -> None:
    """Add a signature to a statement: an auditor's or an expert's. Check the statement before you sign it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from tramark.evidence.findings import fingerprint
    from tramark.evidence.statement import read_statement

    private = _private_key(key)
    if not isinstance(private, Ed25519PrivateKey):
        raise SettingError(f"{key} is no Ed25519 key: make one with `openssl genpkey -algorithm ed25519`")
    envelope, _ = read_statement(statement.read_bytes())
    statement.write_bytes(envelope.signed(private).text())
    typer.echo(f"signed with {fingerprint(private.public_key().public_bytes_raw().hex())}")


@app.command(epilog="Exit codes:\n\n" + "\n\n".join(f"{code:<3}  {meaning}" for code, meaning in CODES.items()))
def verify(
    evidence: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="A statement, or the evidence.json of an earlier version."),
    ],
    annex: AnnexFile = None,
    decrypt: DecryptKey = None,
    commitment: Annotated[
        Path | None,
        existing_file(help="The commitment.json that the federation published before the trace."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Public key, in hex or by fingerprint, that must have signed. May be repeated."),
    ] = None,
    at_most: Annotated[
        float, typer.Option(help="Largest bound on false accusations at which an accusation is taken as proven.")
    ] = 1e-6,
    timestamp: Annotated[
        list[Path] | None, existing_file(help="Time stamp (RFC 3161) of a commitment. May be repeated.")
    ] = None,
    authority: Annotated[
        Path | None, existing_file(help="Certificate (PEM) of the time-stamping authority that you trust.")
    ] = None,
    beacon: Annotated[
        list[str] | None,
        typer.Option(help="Value (hex) of the public beacon that a commitment names. May be repeated."),
    ] = None,
    log: Annotated[Path | None, existing_file(help="The vault's log.jsonl, to check the statement against.")] = None,
    head: Annotated[
        str | None, typer.Option(help="A head of the log that was published earlier (needs --log).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check evidence without the vault: signatures, commitments, openings, dates and the weight of the answers."""
    from tramark.evidence.annex import decrypted
    from tramark.evidence.bundle import is_bundle, verify_bundle
    from tramark.evidence.published import read_published
    from tramark.evidence.reader import Known
    from tramark.evidence.verify import verify_statement
    from tramark.vault.log import read_head_text

    published = read_published(commitment.read_bytes()) if commitment else None
    if timestamp and not authority:
        raise SettingError("a time stamp is worth what its authority is: give --authority too")
    text, keys = evidence.read_bytes(), tuple(key or ())
    if is_bundle(text):
        if annex or len(keys) > 1:
            raise SettingError("evidence of an earlier version has no annex, and one signature")
        found = verify_bundle(text, published=published, public_key=keys[0] if keys else None, at_most=at_most)
    else:
        private = _private_key(decrypt) if decrypt else None
        known = Known(
            published=published,
            keys=keys,
            at_most=at_most,
            tokens=tuple(path.read_bytes() for path in timestamp or ()),
            authority=authority.read_bytes() if authority else None,
            beacons=tuple(_hex(value) for value in beacon or ()),
            log=log.read_bytes() if log else None,
            head=read_head_text(head) if head else None,
        )
        found = verify_statement(text, decrypted(annex.read_bytes(), private) if annex else None, known)
    typer.echo(json.dumps(found.to_dict()) if as_json else "\n".join(_lines(found)))
    if not found.holds:
        raise typer.Exit(UNPROVEN)


def _lines(found: "Findings") -> Iterator[str]:
    from tramark.evidence.findings import shown

    proven = "" if found.holds else " (not proven)"
    ours = "comes from this federation; no client can be named"
    accused = ", ".join(map(shown, found.clients)) or (ours if found.finding == "federation" else shown(found.finding))
    yield f"suspect: {shown(found.suspect)}"
    yield f"finding: {accused}{proven}"
    yield f"error: at most {found.false_accusation_bound:g} in this case" + (
        "" if found.spent is None else f", {found.spent:g} in the {found.case} cases of the vault so far"
    )
    yield f"public key: {found.fingerprint}"
    for title, sentences in (
        ("what lacks", found.lacking),
        ("proven", found.proven),
        ("the signers' word, not proven", found.unproven),
    ):
        if sentences:
            yield from ("", f"{title}:", *(f"  - {sentence}" for sentence in sentences))


@app.command()
def check_base(
    annex: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The annex of the case.")],
    model: Annotated[str, typer.Argument(help="An unmarked model of the task: a file as `tramark trace` takes it.")],
    architecture: Annotated[
        str | None, typer.Option("--model", help="Function that makes the model, if the file holds weights only.")
    ] = None,
    conventions: Annotated[
        Path | None, existing_file(help="JSON file that says how the model is fed and its labels are read.")
    ] = None,
    decrypt: DecryptKey = None,
) -> None:
    """Ask an unmarked model the questions of an annex. It must not answer as the accused: that would show framing.

    Exit code 0: it does not; 6: it does, so the questions were made to fit, or the model knows the accused's answers.
    """
    from tramark.evidence.annex import decrypted, read_annex
    from tramark.evidence.findings import shown
    from tramark.suspects.conventions import Conventions
    from tramark.suspects.files import open_suspect
    from tramark.suspects.schema import conventions_from
    from tramark.tracing.unmarked import ask_unmarked

    opened = read_annex(decrypted(annex.read_bytes(), _private_key(decrypt) if decrypt else None))
    base = open_suspect(
        model,
        conventions=conventions_from(read_json(conventions), str(conventions)) if conventions else Conventions(),
        model=architecture,
    )
    found = ask_unmarked(opened, base)
    for client, likeness in found.items():
        typer.echo(
            f"{shown(client)}: the unmarked model gives {likeness.matches} of its {likeness.answered} answers "
            f"(p-value {likeness.p_value:.2g}){': the accusation is in doubt' if likeness.doubtful else ''}"
        )
    if any(likeness.doubtful for likeness in found.values()):
        raise typer.Exit(UNPROVEN)


@app.command()
def ask(
    evidence: Annotated[
        Path, typer.Argument(exists=True, help="The annex of the case, or the vault's folder together with --case.")
    ],
    suspect: Annotated[str, typer.Argument(help="The suspect: a file, a Hugging Face folder, or a URL.")],
    case: Annotated[int | None, typer.Option(help="The case's number in the vault.")] = None,
    model: ModelOption = None,
    rate: RateOption = None,
    token_env: TokenOption = None,
    header: HeaderOption = None,
    decrypt: DecryptKey = None,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
) -> None:
    """Ask a suspect again what it was asked in a case, fed and read as the case records, and compare its answers.

    Exit code 0: all answers are the same; 6: some are not.
    """
    from tramark.cli.desk import asking, desk_at
    from tramark.evidence.annex import decrypted, read_annex
    from tramark.suspects.weights import ModelName
    from tramark.tracing.again import ask_again, asked_in_annex, asked_in_case

    how = asking(model=model, conventions=None, template=None, rate=rate, token_env=token_env, header=header)
    if evidence.is_dir():
        if case is None:
            raise SettingError("say which case of the vault: --case")
        with desk_at(evidence, how, key_file, data_dir) as desk:
            record, inputs = desk.vault.cases.get(case), asked_in_case(desk.vault, case)
            prepare = desk.keyring.source.prepare
            named = None if "://" in suspect else desk.named
    else:
        opened = read_annex(decrypted(evidence.read_bytes(), _private_key(decrypt) if decrypt else None))
        record, inputs, prepare = opened.case, asked_in_annex(opened), None
        named = ModelName(model) if model and "://" not in suspect else None
    served = model if "://" in suspect else None
    found = ask_again(record, inputs, suspect, prepare=prepare, model=served or named, http=how.http)
    if not found.same_suspect:
        typer.echo("this is not the suspect of the case: its digest or address is another")
    typer.echo(f"{found.same} of {found.asked} answers are those that the case records")
    if found.same < found.asked or not found.same_suspect:
        raise typer.Exit(UNPROVEN)


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise SettingError(f"{text!r} is not in hex: give a beacon's value as it is published") from None


def _private_key(path: Path) -> "PrivateKeyTypes":
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        raise SettingError(f"{path} holds no private key in PEM without a password") from None


def _public_key(path: Path) -> "PublicKeyTypes":
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        return load_pem_public_key(path.read_bytes())
    except ValueError:
        raise SettingError(f"{path} holds no public key in PEM") from None
