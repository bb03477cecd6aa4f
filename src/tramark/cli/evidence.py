"""`tramark evidence`: check what a trace left behind, without the vault."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tramark.cli.common import existing_file

app = typer.Typer(help="Check the signed evidence of a trace.", no_args_is_help=True)


@app.command()
def verify(
    bundle: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="The evidence.json that a trace wrote."),
    ],
    commitment: Annotated[
        Path | None,
        existing_file(help="The commitment.json that the federation published. It proves whose evidence this is."),
    ] = None,
    public_key: Annotated[
        str | None, typer.Option("--key", help="The federation's public key in hex, to compare with the bundle's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check an evidence bundle without the vault: its signature, commitments, proofs and verdict."""
    from tramark.evidence.verify import read_published, verify_bundle

    published = read_published(commitment.read_bytes()) if commitment else None
    findings = verify_bundle(bundle.read_bytes(), published=published, public_key=public_key)
    if as_json:
        typer.echo(json.dumps(findings.to_dict()))
        return
    accused = ", ".join(findings.clients) or findings.finding
    lines = [f"verdict: {accused}", f"public key: {findings.fingerprint}", "", "proven:"]
    lines += [f"  - {sentence}" for sentence in findings.proven] + ["", "not proven by this file:"]
    lines += [f"  - {sentence}" for sentence in findings.unproven]
    typer.echo("\n".join(lines))
