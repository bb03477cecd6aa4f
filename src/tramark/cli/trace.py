"""`tramark trace`: ask suspects, and say whose mark they carry."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tramark.cli.common import EXIT, DataDir, KeyFile, VaultPath, console
from tramark.cli.desk import (
    Asking,
    ConventionsOption,
    Desk,
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
from tramark.errors import SettingError, SuspectError

if TYPE_CHECKING:
    from tramark.tracing.verdict import Verdict


def trace_command(
    vault: VaultPath,
    suspects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUSPECT…",
            help="The models to ask: files (.safetensors, .pt, .pt2, .onnx), Hugging Face folders, or URLs.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    conventions: ConventionsOption = None,
    template: TemplateOption = None,
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
    rate: RateOption = None,
    token_env: TokenOption = None,
    header: HeaderOption = None,
    memory: MemoryOption = None,
    seconds: SecondsOption = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe/--no-probe",
            help="Find out first, by public inputs, how the suspect is fed and its labels are read (at most 64 "
            "queries). What --conventions states stands.",
        ),
    ] = True,
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdict as JSON; of several suspects, one line each.")
    ] = False,
    table: Annotated[
        Path | None,
        typer.Option("--csv", dir_okay=False, help="File to add a line to for each suspect, as soon as it is traced."),
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder to watch: each file or folder that appears in it is traced, until Ctrl-C.",
        ),
    ] = None,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
) -> None:
    """Say whose mark a model carries, or that nobody's is found, by asking the model the vault's questions.

    Every trace is a case of the vault: `tramark vault cases` lists them. Of several suspects, one that fails does not
    stop the others; the exit code is 1 if any failed, else 0 if any carries a mark, else 4 if any is inconclusive,
    else 3.
    """
    how = asking(
        model=model,
        conventions=conventions,
        template=template,
        rate=rate,
        token_env=token_env,
        budget=budget,
        header=header,
        memory=memory,
        seconds=seconds,
    )
    options = {"false_accusation": false_accusation, "budget": budget, "rule": rule, "exhaustive": exhaustive}
    job = Job(
        options | {"probe": probe},
        tuple(reference or ()),
        case,
        dry_run,
        report,
        as_json,
        auditor,
        notes,
    )
    named = suspects or []
    if not named and watch is None:
        raise SettingError("name a suspect, or a folder to --watch")
    from tramark.cli.many import and_then, trace_many

    many = len(named) > 1 or watch is not None or table is not None
    if many and (case is not None or dry_run or report is not None):
        raise SettingError("--case, --dry-run and --report are for one suspect: trace it by itself")
    with desk_at(vault, how, key_file, data_dir) as desk:
        if not many:
            raise typer.Exit(trace_one(desk, named[0], job))
        raise typer.Exit(trace_many(desk, named if watch is None else and_then(named, watch), job, table))


@dataclass(frozen=True)
class Job:
    """What a trace is told beside the suspect: options of `trace`, and what is shown and written."""

    options: dict[str, Any]
    references: tuple[str, ...] = ()
    case: int | None = None
    dry_run: bool = False
    report: Path | None = None
    as_json: bool = False
    auditor: str = ""
    notes: str = ""


def trace_suspect(place: Path, target: str, *, report: Path | None = None, as_json: bool = False) -> int:
    """Traces a suspect, shows the verdict, and gives the exit code. `place` is the vault's folder, or its run's."""
    with desk_at(place, Asking(), None, None) as desk:
        return trace_one(desk, target, Job({}, report=report, as_json=as_json))


def trace_one(desk: Desk, target: str, job: Job) -> int:
    """Traces a suspect, shows the verdict, and gives the exit code."""
    from tramark.report.written import check_folder, write_report
    from tramark.tracing.handover import findings_of, make_statement

    if job.dry_run:
        keyring = desk.keyring
        typer.echo(desk.adapter(target).preview(keyring.raw(keyring.chosen or (0,), "held-out")[:, 0]))
        return 0
    if job.report is not None:
        check_folder(job.report)
    verdict, sent = traced(desk, target, job)
    if job.report is not None:
        assert verdict.case is not None
        statement = findings = None
        if verdict.false_accusation_bound is not None and verdict.transcript:
            statement = make_statement(desk.vault, verdict.case)
            findings = findings_of(desk.vault, verdict.case, statement)
        written = write_report(
            job.report,
            verdict,
            desk.keyring,
            suspect=verdict.case.suspect.words,
            statement=statement,
            findings=findings,
            auditor=job.auditor,
            notes=job.notes,
        )
        console.print(f"report: {written}", highlight=False, soft_wrap=True)
    typer.echo(json.dumps(verdict.to_dict()) if job.as_json else "\n".join(_words(verdict, sent)))
    return EXIT[verdict.finding]


def traced(desk: Desk, target: str, job: Job) -> "tuple[Verdict, int]":
    """The verdict, and how many queries were sent that are not in it, because they were repeated."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from tramark.cli.probe import lines
    from tramark.suspects.http import HttpSuspect
    from tramark.suspects.tried import Probed
    from tramark.tracing.suspected import suspected_at
    from tramark.tracing.trace import trace

    probes: list[Probed] = []

    def probed(found: Probed) -> None:
        probes.append(found)
        if not found.stated or found.doubt is not None:
            console.print("\n".join(lines(found)), highlight=False, markup=False)

    begun = desk.vault.cases.get(job.case) if job.case is not None else None
    earlier = len(begun.asked) if begun else 0
    with Progress(
        SpinnerColumn(),
        TextColumn("asking"),
        TextColumn("{task.completed} queries"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task("asking", total=None, completed=earlier)
        adapter = desk.adapter(target)
        try:
            verdict = trace(
                adapter,
                desk.vault,
                progress=lambda step: progress.advance(task),
                references=[desk.adapter(reference, vouched=True) for reference in job.references],
                suspected=None if "://" in target else suspected_at(target),
                case=job.case,
                on_probe=probed,
                **job.options,
            )
        except SuspectError as error:
            if error.case is not None:
                console.print(f"to go on later: --case {error.case}", highlight=False)
            raise
    sent = adapter.asked - sum(found.queries for found in probes) if isinstance(adapter, HttpSuspect) else 0
    return verdict, sent if sent > verdict.queries - earlier else 0


def _words(verdict: "Verdict", sent: int) -> list[str]:
    from tramark.report.words import facts, verdict_sentence

    headline, how_sure = verdict_sentence(verdict)
    # A user with a budget, or who pays by the query, wants to know the number of failed queries too.
    repeated = f" With those repeated, {sent} were sent." if sent else ""
    public = verdict.case.probe["queries"] if verdict.case and verdict.case.probe else 0
    before = f" Before that, {public} public inputs were asked." if public else ""
    return [headline, how_sure, *facts(verdict), f"{verdict.queries} queries.{repeated}{before}"]
