"""`tramark trace`: ask a suspect, and say which client leaked it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

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
from tramark.errors import SettingError

if TYPE_CHECKING:
    from tramark.suspects.base import Adapter
    from tramark.suspects.conventions import Conventions
    from tramark.suspects.http import HttpOptions
    from tramark.suspects.json_api import JsonTemplate
    from tramark.tracing.interview import Step


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
        existing_file(help="JSON file that says how the suspect is fed and its labels are read (docs/suspects.md)."),
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
    transcript: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File in which the answers are kept. A trace that was interrupted goes on from this file.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be asked, and send nothing to the suspect.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder to write report.html and the signed evidence.json to.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
) -> None:
    """Say which client leaked a model, or that no client did, by asking the model the vault's questions."""
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
        transcript=transcript,
        dry_run=dry_run,
        report=report,
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
    transcript: Path | None = None,
    dry_run: bool = False,
    report: Path | None = None,
    as_json: bool = False,
    key_file: Path | None = None,
    data_dir: Path | None = None,
) -> int:
    """Traces a suspect, shows the verdict, and gives the exit code. `place` is the vault's folder, or its run's."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from tramark.cli.zoo import model_factory
    from tramark.lab.simulation.run import MODEL
    from tramark.report.page import write_report
    from tramark.report.words import verdict_sentence
    from tramark.suspects.conventions import Conventions
    from tramark.suspects.files import open_suspect
    from tramark.suspects.inference import V2Suspect
    from tramark.suspects.json_api import JsonSuspect
    from tramark.tracing.bundle import make_bundle
    from tramark.tracing.trace import trace
    from tramark.vault.files import replace_file

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
        steps = _read_steps(transcript)
        earlier = len(steps)
        if transcript is not None:
            transcript.parent.mkdir(parents=True, exist_ok=True)
        with Progress(
            SpinnerColumn(),
            TextColumn("asking"),
            TextColumn("{task.completed} queries"),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            task = progress.add_task("asking", total=None, completed=len(steps))

            def show(step: "Step") -> None:
                progress.advance(task)
                steps.append(step)
                if transcript is not None:
                    replace_file(transcript, json.dumps(steps).encode())

            unmarked = [adapter_for(reference, vouched=True) for reference in references]
            verdict = trace(
                adapter,
                keyring,
                progress=show,
                transcript=tuple(steps),
                references=unmarked,
                premise=vault.premise(),
                **(options or {}),
            )
        if report is not None:
            described = _described(target)
            bounded = verdict.false_accusation_bound is not None and verdict.transcript
            bundle = make_bundle(vault, verdict, suspect=described) if bounded else None
            write_report(report, verdict, keyring, suspect=described, bundle=bundle)
    if as_json:
        typer.echo(json.dumps(verdict.to_dict()))
    else:
        headline, how_sure = verdict_sentence(verdict)
        sent = adapter.asked if isinstance(adapter, (V2Suspect, JsonSuspect)) else 0
        # A user with a budget, or who pays by the query, wants to know the number of failed queries too.
        repeated = f" With those repeated, {sent} were sent." if sent > verdict.queries - earlier else ""
        typer.echo(f"{headline}\n{how_sure}\n{verdict.queries} queries.{repeated}")
    return EXIT[verdict.finding]


def _described(target: str) -> str:
    """A suspect as reports name it: a URL without password and query string, or a file's name and hash."""
    if "://" in target:
        parts = urlsplit(target)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    path = Path(target)
    if not path.is_file():
        return f"{path.name} (a folder)"
    with path.open("rb") as file:
        return f"{path.name} (SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()})"


def _read_steps(path: Path | None) -> "list[Step]":
    """The answers that an earlier trace kept in a file; none if there is no file yet."""
    from tramark.tracing.interview import Step

    if path is None or not path.exists():
        return []
    try:
        return [Step(*step) for step in read_json(path)]
    except TypeError:
        raise SettingError(f"{path} does not hold the answers of a trace: give another file") from None
