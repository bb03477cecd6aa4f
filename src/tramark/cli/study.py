"""`tramark study`: run an experiment of many cases, go on with it after a stop, and draw its table and picture."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from tramark.cli.common import INCOMPLETE, DataDir, Device, console, device_named
from tramark.errors import SettingError
from tramark.lab.names import ScaleName
from tramark.lab.studies.contents import CONTENTS

if TYPE_CHECKING:
    from rich.progress import TaskID

    from tramark.lab.studies.study import Case, Row, Run, Scale, Study

app = typer.Typer(help="Run the experiments behind our tables and figures.", no_args_is_help=True)

Out = Annotated[
    Path,
    typer.Option(
        file_okay=False,
        help="Folder for the results of all studies. Rows and federations that are in it already are not run again.",
    ),
]
ScaleOption = Annotated[
    ScaleName,
    typer.Option(help="smoke takes seconds and shows that it works; laptop is for two cores; paper is for a GPU."),
]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds with which each case is run.")]
Workers = Annotated[int, typer.Option(min=1, help="Number of runs at a time, each in a process with one thread.")]
Only = Annotated[str | None, typer.Option(help="Names of the cases to run, separated by commas. By default, all.")]
Again = Annotated[bool, typer.Option("--again", help="Delete the rows of these cases first, and run them again.")]
Publish = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="Folder to which a page for each study and an index are written. Rows that it has are not run again.",
    ),
]

RESULTS = Path("runs/studies")


@app.command("list")
def show(out: Out = RESULTS) -> None:
    """List all studies: where each is in the paper, what it costs at each scale, and what has been run."""
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    from tramark.lab.studies.catalogue import STUDIES
    from tramark.lab.studies.study import SCALES, all_runs, minutes_of

    fixed = (Column(name, no_wrap=True) for name in SCALES)
    table = Table(Column("study", no_wrap=True), "in the paper", "cases", *fixed, "rows", box=box.SIMPLE_HEAD)
    for name, made in STUDIES.items():
        costs = [_duration(minutes_of(all_runs(made(scale).cases(), 1))) for scale in SCALES]
        there = [f"{scale}: {count}" for scale in SCALES if (count := _rows_in(out / scale / name))]
        cases = str(len(made("laptop").cases()))
        table.add_row(name, CONTENTS[name].paper.partition(",")[0], cases, *costs, ", ".join(there))
    Console().print(table, f"Under smoke, laptop and paper: the cost on two cores. Rows are those in {out}.")


@app.command("all")
def everything(
    out: Out = RESULTS,
    scale: ScaleOption = "laptop",
    data_dir: DataDir = None,
    seeds: Seeds = 1,
    workers: Workers = 1,
    publish: Publish = None,
    device: Device = "cpu",
) -> None:
    """Run all studies one after another; what is there already is not run again."""
    from tramark.lab.studies.catalogue import STUDIES

    complete = True
    for name, made in STUDIES.items():
        console.rule(name)
        study = made(scale)
        job = _Job(out, scale, data_dir, seeds, workers, publish, device)
        complete = job.conduct(study, _open_cases(study)) and complete
    if not complete:
        raise typer.Exit(INCOMPLETE)


@app.command(help=CONTENTS["zoo"].about)
def zoo(
    out: Out = RESULTS,
    scale: ScaleOption = "laptop",
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
    publish: Publish = None,
) -> None:
    from tramark.lab.studies.study import named
    from tramark.lab.studies.zoo_study import zoo_at

    study, wanted = zoo_at(scale), _names(only)
    if not (held_back or everything) and (hidden := sorted(study.held_back.intersection(wanted))):
        raise SettingError(f"held back while the defaults are chosen: {', '.join(hidden)}. --held-back runs them")
    cases = [case for case in study.cases() if everything or (case.name in study.held_back) is held_back]
    job = _Job(out, scale, data_dir, seeds, workers, publish)
    if not job.conduct(study, named(cases, wanted), again=again):
        raise typer.Exit(INCOMPLETE)


def _command(name: str) -> Callable[..., None]:
    """The command of one study."""

    def command(
        out: Out = RESULTS,
        scale: ScaleOption = "laptop",
        data_dir: DataDir = None,
        seeds: Seeds = 1,
        workers: Workers = 1,
        only: Only = None,
        again: Again = False,
        publish: Publish = None,
        device: Device = "cpu",
    ) -> None:
        from tramark.lab.studies.catalogue import STUDIES
        from tramark.lab.studies.study import named

        study = STUDIES[name](scale)
        job = _Job(out, scale, data_dir, seeds, workers, publish, device)
        if not job.conduct(study, named(study.cases(), _names(only)), again=again):
            raise typer.Exit(INCOMPLETE)

    return command


for _name, _entry in CONTENTS.items():
    if _name != "zoo":
        app.command(_name, help=f"{_entry.about}\n\nIn the paper: {_entry.paper}.")(_command(_name))


@dataclass(frozen=True)
class _Job:
    """How a command wants studies to be run."""

    out: Path
    scale: "Scale"
    data_dir: Path | None
    seeds: int
    workers: int
    publish: Path | None = None
    device: str = "cpu"

    def conduct(self, study: "Study", cases: "Sequence[Case]", *, again: bool = False) -> bool:
        """Run cases of a study with a progress bar, and print the table; False if some have no result."""
        from tramark.lab.studies.book import Book
        from tramark.lab.studies.engine import conduct
        from tramark.lab.studies.pages import publish, take_over
        from tramark.lab.studies.study import all_runs, minutes_of

        out = self.out / self.scale / study.name
        book, runs = Book(study, out, self.out / "work"), all_runs(cases, self.seeds)
        if again:
            book.forget(runs)
        elif self.publish is not None and (taken := take_over(book, self.scale, self.publish, runs)):
            console.print(f"{taken} rows are taken over from {self.publish}", highlight=False)
        pending = book.pending(runs)
        possible = _with_data(list({run.case.name: run.case for run in pending}.values()), self.data_dir)
        there = len(runs) - len(pending)
        if there:
            console.print(f"{there} of {len(runs)} rows are there already", highlight=False)
        runnable = [run for run in pending if run.case in possible]

        def left(ended: "set[str]") -> float:
            return minutes_of([run for run in runnable if run.name not in ended], book.work)

        with _Bars(study.name, done=there, total=there + len(runnable), left=left) as bars:
            device = str(device_named(self.device))
            rows = conduct(book, runnable, workers=self.workers, data_dir=self.data_dir, watcher=bars, device=device)
        drawn = book.write_up()
        typer.echo(book.table())
        console.print(f"the table, the picture and all rows: {out}", highlight=False)
        if not drawn:
            console.print("no picture: install tramark[lab] for it")
        if self.publish is not None:
            console.print(f"the page: {publish(book, self.scale, self.publish)}", highlight=False)
        return len(runnable) == len(pending) and not any("error" in row for row in rows)


def _open_cases(study: "Study") -> "list[Case]":
    """The cases that are run unless asked otherwise."""
    held_back: frozenset[str] = getattr(study, "held_back", frozenset())
    return [case for case in study.cases() if case.name not in held_back]


def _rows_in(folder: Path) -> int:
    return len(list((folder / "rows").glob("*.json")))


def _duration(minutes: float) -> str:
    """Minutes as a reader wants them.

    >>> _duration(0.2), _duration(12.3), _duration(150)
    ('< 1 min', '12 min', '2.5 h')
    """
    if minutes < 1:
        return "< 1 min"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


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
    """A bar for the whole study with the time left, and a line for each run that is going on.

    `left` says how many minutes are left by the estimate, given the names of the runs that have ended. The time left is
    that, corrected by how long the ended runs took.
    """

    def __init__(self, title: str, *, done: int, total: int, left: Callable[[set[str]], float]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        words = TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
        columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), words
        self._progress = Progress(*columns, console=console, expand=True)
        self._whole = self._progress.add_task(title, total=total, completed=done, state="")
        self._lines: dict[str, TaskID] = {}
        self._left, self._ended = left, set[str]()
        self._began, self._estimate = time.monotonic(), left(set())
        if self._estimate >= 1:
            console.print(f"about {_duration(self._estimate)} on two cores", highlight=False)

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
        self._ended.add(run.name)
        left = self._left(self._ended)
        spent, gone = (time.monotonic() - self._began) / 60, self._estimate - left
        self._progress.update(
            self._whole, advance=1, state=f"{_duration(spent * left / gone)} left" if left > 0 and gone > 0 else ""
        )
        if "error" in row:
            console.print(f"{run.name} failed: {row['error']}", style="red", markup=False, highlight=False)
        else:
            console.print(f"{run.name} is done", markup=False, highlight=False)
