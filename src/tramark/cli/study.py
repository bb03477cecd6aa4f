"""`tramark study`: run an experiment of many cases, go on with it after a stop, and draw its table and picture."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from tramark.cli.common import INCOMPLETE, DataDir, console
from tramark.errors import SettingError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from tramark.lab.studies.study import Case, Row, Run, Study

app = typer.Typer(help="Run the experiments behind our tables and figures.", no_args_is_help=True)

Out = Annotated[
    Path,
    typer.Option(file_okay=False, help="Folder for the results. Rows that are in it already are not run again."),
]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds with which each case is run.")]
Workers = Annotated[int, typer.Option(min=1, help="Number of runs at a time, each in a process with one thread.")]
Only = Annotated[str | None, typer.Option(help="Names of the cases to run, separated by commas. By default, all.")]
Again = Annotated[bool, typer.Option("--again", help="Delete the rows of these cases first, and run them again.")]


@app.command("list")
def show() -> None:
    """List all studies, and say what each shows."""
    from rich.console import Console
    from rich.table import Table

    from tramark.lab.studies.catalogue import STUDIES

    table = Table("study", "cases", "what it shows")
    for study in STUDIES.values():
        table.add_row(study.name, str(len(study.cases())), study.about)
    Console().print(table)


@app.command()
def zoo(
    out: Out,
    data_dir: DataDir = None,
    seeds: Seeds = 1,
    workers: Workers = 1,
    only: Only = None,
    held_back: Annotated[
        bool,
        typer.Option(
            "--held-back/--open",
            help="Run the federations that are held back while the defaults are chosen, or those that are open.",
        ),
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Run open and held-back federations.")] = False,
    again: Again = False,
) -> None:
    """Train the zoo's federations with marks and without, and compare them.

    Each has other data, another net or another optimiser; all marks are made with the defaults.
    """
    from tramark.lab.studies.study import named
    from tramark.lab.studies.zoo_study import Zoo

    study, wanted = Zoo(), _names(only)
    if not (held_back or everything) and (hidden := sorted(study.held_back.intersection(wanted))):
        raise SettingError(f"held back while the defaults are chosen: {', '.join(hidden)}. --held-back runs them")
    cases = [case for case in study.cases() if everything or (case.name in study.held_back) is held_back]
    _conduct(study, named(cases, wanted), out, data_dir=data_dir, seeds=seeds, workers=workers, again=again)


def _conduct(
    study: "Study",
    cases: "Sequence[Case]",
    out: Path,
    *,
    data_dir: Path | None,
    seeds: int,
    workers: int,
    again: bool,
) -> None:
    """Run cases of a study with a progress bar, print the table, and exit with 1 if some have no result."""
    from tramark.lab.studies.book import Book
    from tramark.lab.studies.engine import conduct
    from tramark.lab.studies.study import all_runs

    book, runs = Book(study, out), all_runs(cases, seeds)
    if again:
        book.forget(runs)
    pending = book.pending(runs)
    possible = _with_data(list({run.case.name: run.case for run in pending}.values()), data_dir)
    there = len(runs) - len(pending)
    if there:
        console.print(f"{there} of {len(runs)} rows are there already", highlight=False)
    todo = [run for run in pending if run.case in possible]
    with _Bars(study.name, done=there, total=there + len(todo)) as bars:
        rows = conduct(book, todo, workers=workers, data_dir=data_dir, watcher=bars)
    drawn = book.write_up()
    typer.echo(book.table())
    console.print(f"the table, the picture and all rows: {out}", highlight=False)
    if not drawn:
        console.print("no picture: install tramark[lab] for it")
    if len(todo) < len(pending) or any("error" in row for row in rows):
        raise typer.Exit(INCOMPLETE)


def _with_data(cases: "Sequence[Case]", data_dir: Path | None) -> "list[Case]":
    """The cases whose data can be had. Says for each missing data set which cases need it, and how to give it."""
    from tramark.lab.studies.needs import missing_sets

    with console.status("looking for data"):
        missing = missing_sets(cases, data_dir)
    for name, why in missing.items():
        lacking = ", ".join(case.name for case in cases if name in case.sets)
        console.print(
            f"no data for {lacking}: put {name}*.npz into the folder that --data-dir names ({why})",
            style="yellow",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return [case for case in cases if not missing.keys() & set(case.sets)]


def _names(only: str | None) -> list[str]:
    return [name.strip() for name in only.split(",") if name.strip()] if only else []


class _Bars:
    """A bar for the whole study, and a line for each run that is going on."""

    def __init__(self, title: str, *, done: int, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        words = TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
        columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), words
        self._progress = Progress(*columns, console=console, expand=True)
        self._whole = self._progress.add_task(title, total=total, completed=done, state="")
        self._lines: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def says(self, run: "Run", words: str) -> None:
        if run.name not in self._lines:
            self._lines[run.name] = self._progress.add_task(run.name, total=None, state="")
        self._progress.update(self._lines[run.name], state=words)

    def ended(self, run: "Run", row: "Row") -> None:
        self._progress.remove_task(self._lines.pop(run.name))
        self._progress.advance(self._whole)
        if "error" in row:
            console.print(f"{run.name} failed: {row['error']}", style="red", markup=False, highlight=False)
        else:
            console.print(f"{run.name} is done", markup=False, highlight=False)
