"""`tramark probe`: find out how a suspect is fed and read, by inputs that are public."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tramark.cli.common import INCONCLUSIVE, DataDir, KeyFile, console
from tramark.cli.desk import (
    ConventionsOption,
    HeaderOption,
    MemoryOption,
    ModelOption,
    RateOption,
    SecondsOption,
    TemplateOption,
    TokenOption,
    asking,
    desk_at,
)
from tramark.errors import SettingError

if TYPE_CHECKING:
    from tramark.suspects.tried import Probed


def probe_command(
    suspect: Annotated[str, typer.Argument(help="The model to ask: a file, a Hugging Face folder, or a URL.")],
    vault: Annotated[
        Path,
        typer.Option(exists=True, file_okay=False, help="The vault's folder, or the folder of a run that has a vault."),
    ],
    model: ModelOption = None,
    conventions: ConventionsOption = None,
    template: TemplateOption = None,
    rate: RateOption = None,
    token_env: TokenOption = None,
    header: HeaderOption = None,
    memory: MemoryOption = None,
    seconds: SecondsOption = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write the proposal to, for `trace --conventions`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
) -> None:
    """Propose how a suspect is fed and its labels are read. No question of the vault is asked, and no error is spent.

    Exit code 0: nothing speaks against the proposal; 4: the suspect is probably fed wrongly, whatever was tried.
    """
    from tramark.suspects.readings import plain_conventions
    from tramark.tracing.probing import probe_suspect

    how = asking(
        model=model,
        conventions=conventions,
        template=template,
        rate=rate,
        token_env=token_env,
        header=header,
        memory=memory,
        seconds=seconds,
    )
    if out is not None and out.exists():
        raise SettingError(f"{out} exists already: nothing is overwritten")
    with desk_at(vault, how, key_file, data_dir) as desk, console.status("probing"):
        found = probe_suspect(desk.adapter(suspect), desk.vault)
    assert found is not None
    if out is not None:
        out.write_text(json.dumps(plain_conventions(found.conventions), indent=2) + "\n")
    typer.echo(json.dumps(found.to_dict()) if as_json else "\n".join(lines(found)))
    if found.doubt is not None:
        raise typer.Exit(INCONCLUSIVE)


def lines(found: "Probed") -> Iterator[str]:
    """What a probe found, for people."""
    from tramark.suspects.readings import plain_conventions

    best = found.best
    if found.doubt is not None:
        yield f"probably fed wrongly: {found.doubt}"
    if found.stated:
        yield f"fed and read as stated ({best.reading})"
    else:
        yield f"proposed: {json.dumps(plain_conventions(found.conventions), ensure_ascii=False)} ({best.reading})"
    if found.compared:
        yield f"{best.alike} of {best.asked} answers to public inputs are those of the federation's unmarked base"
    yield f"{found.queries} public inputs asked, {len(found.tried)} ways tried"
