"""`tramark trace`: ask a suspect, and say whose mark it carries."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tramark.cli.common import (
    EXIT,
    DataDir,
    KeyFile,
    VaultPath,
    console,
    existing_file,
    keyring_of,
    open_vault,
    read_json,
)
from tramark.errors import SuspectError

if TYPE_CHECKING:
    from tramark.suspects.base import Adapter
    from tramark.suspects.conventions import Conventions
    from tramark.suspects.http import HttpOptions
    from tramark.suspects.json_api import JsonTemplate


def trace_command(
    vault: VaultPath,
    suspect: Annotated[
        str,
        typer.Argument(
            help="The model to ask: a file (.safetensors, .pt, .pt2, .onnx), a Hugging Face folder, or a URL."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="Architecture of a file that holds weights only: a name, or package.module:factory. For a URL: the "
            "model's name at the server."
        ),
    ] = None,
    conventions: Annotated[
        Path | None,
        existing_file(
            help="JSON file that says how the suspect is fed and its labels are read (docs/reference/suspects.md)."
        ),
    ] = None,
    template: Annotated[
        Path | None, existing_file(help="JSON file that says how to ask a JSON API of any other kind (URLs only).")
    ] = None,
    false_accusation: Annotated[
        float, typer.Option(help="Upper bound on the probability that any innocent client is accused.")
    ] = 1e-6,
    budget: Annotated[int | None, typer.Option(help="Largest number of queries to send.")] = None,
    rule: Annotated[
        Literal["default", "paper"],
        typer.Option(
            help="How the answers are judged. default has the bound on false accusations; paper takes the client with "
            "most matches and always accuses one."
        ),
    ] = "default",
    reference: Annotated[
        list[str] | None,
        typer.Option(
            help="An unmarked model of the same task to compare the suspect with (needed for label answers). Repeat "
            "the option for each; 19 or more are needed."
        ),
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Ask all questions even after a client is named, to find accomplices.")
    ] = False,
    rate: Annotated[float | None, typer.Option(help="Largest number of queries per second (URLs only).")] = None,
    token_env: Annotated[
        str | None, typer.Option(help="Name of the environment variable that holds the bearer token (URLs only).")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=ENVVAR: send this header with the value of that environment variable, such as "
            "X-API-Key=MY_KEY. Repeat the option for each (URLs only)."
        ),
    ] = None,
    case: Annotated[
        int | None,
        typer.Option(help="Number of an interrupted case of the vault, which goes on with the same suspect."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be asked, and send nothing to the suspect.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Folder for report.html, public.html and the signed statement.json. Nothing in it is overwritten.",
        ),
    ] = None,
    auditor: Annotated[str, typer.Option(help="Who traces, for the report.")] = "",
    notes: Annotated[str, typer.Option(help="What else there is to say, for the report.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
) -> None:
    """Say whose mark a model carries, or that nobody's is found, by asking the model the vault's questions.

    Every trace is a case of the vault: `tramark vault cases` lists them.
    """
    from tramark.suspects.http import HttpOptions, from_environment
    from tramark.suspects.schema import conventions_from, template_from

    code = trace_suspect(
        vault,
        suspect,
        model=model,
        conventions=conventions_from(read_json(conventions), str(conventions)) if conventions else None,
        template=template_from(read_json(template), str(template)) if template else None,
        http=HttpOptions(rate=rate, token_env=token_env, budget=budget, headers=from_environment(header or ())),
        options={"false_accusation": false_accusation, "budget": budget, "rule": rule, "exhaustive": exhaustive},
        references=reference or (),
        case=case,
        dry_run=dry_run,
        report=report,
        auditor=auditor,
        notes=notes,
        as_json=as_json,
        key_file=key_file,
        data_dir=data_dir,
    )
    raise typer.Exit(code)


def trace_suspect(
    place: Path,
    target: str,
    *,
    model: str | None = None,
    conventions: "Conventions | None" = None,
    template: "JsonTemplate | None" = None,
    http: "HttpOptions | None" = None,
    options: dict[str, Any] | None = None,
    references: Sequence[str] = (),
    case: int | None = None,
    dry_run: bool = False,
    report: Path | None = None,
    auditor: str = "",
    notes: str = "",
    as_json: bool = False,
    key_file: Path | None = None,
    data_dir: Path | None = None,
) -> int:
    """Traces a suspect, shows the verdict, and gives the exit code. `place` is the vault's folder, or its run's."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from tramark.cli.zoo import model_factory
    from tramark.lab.simulation.run import MODEL
    from tramark.report.words import facts, verdict_sentence
    from tramark.report.written import check_folder, write_report
    from tramark.suspects.conventions import Conventions
    from tramark.suspects.files import open_suspect
    from tramark.suspects.inference import V2Suspect
    from tramark.suspects.json_api import JsonSuspect
    from tramark.tracing.handover import findings_of, make_statement
    from tramark.tracing.suspected import suspected_at
    from tramark.tracing.trace import trace

    with open_vault(place, key_file, readonly=True) as vault:
        keyring = keyring_of(vault, data_dir)
        known = json.loads(vault.get(MODEL)) if MODEL in vault.names else {}

        def adapter_for(target: str, *, vouched: bool = False) -> "Adapter":
            remote = "://" in target
            named = None if remote else model_factory(model, keyring, known)
            return open_suspect(
                target,
                conventions=replace(conventions or Conventions(), prepare=keyring.source.prepare),
                # The user vouches for references: they need no processes of their own.
                model=named.build if named and vouched else named,
                served=model if remote else None,
                template=template,
                http=http,
            )

        adapter = adapter_for(target)
        if dry_run:
            typer.echo(adapter.preview(keyring.raw(keyring.chosen or (0,), "held-out")[:, 0]))
            return 0
        if report is not None:
            check_folder(report)
        begun = vault.cases.get(case) if case is not None else None
        earlier = len(begun.asked) if begun else 0
        with Progress(
            SpinnerColumn(),
            TextColumn("asking"),
            TextColumn("{task.completed} queries"),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            task = progress.add_task("asking", total=None, completed=earlier)
            unmarked = [adapter_for(reference, vouched=True) for reference in references]
            try:
                verdict = trace(
                    adapter,
                    vault,
                    progress=lambda step: progress.advance(task),
                    references=unmarked,
                    suspected=None if "://" in target else suspected_at(target),
                    case=case,
                    **(options or {}),
                )
            except SuspectError as error:
                if error.case is not None:
                    console.print(f"to go on later: --case {error.case}", highlight=False)
                raise
        if report is not None:
            assert verdict.case is not None
            statement = findings = None
            if verdict.false_accusation_bound is not None and verdict.transcript:
                statement = make_statement(vault, verdict.case)
                findings = findings_of(vault, verdict.case, statement)
            written = write_report(
                report,
                verdict,
                keyring,
                suspect=verdict.case.suspect.words,
                statement=statement,
                findings=findings,
                auditor=auditor,
                notes=notes,
            )
            console.print(f"report: {written}", highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(verdict.to_dict()))
    else:
        headline, how_sure = verdict_sentence(verdict)
        sent = adapter.asked if isinstance(adapter, (V2Suspect, JsonSuspect)) else 0
        # A user with a budget, or who pays by the query, wants to know the number of failed queries too.
        repeated = f" With those repeated, {sent} were sent." if sent > verdict.queries - earlier else ""
        typer.echo("\n".join([headline, how_sure, *facts(verdict), f"{verdict.queries} queries.{repeated}"]))
    return EXIT[verdict.finding]
