"""Run the cases of a study, each run in a process of its own with one thread.

So the numbers are the same however many runs go on at a time, and a run that crashes takes no other with it. A row is
written as soon as its run has ended: a study that was killed goes on with the rows that are missing. A run that needs
a federation which another run is just playing waits for it, and others go first.
"""

import json
import multiprocessing
import signal
import time
import traceback
import warnings
from collections.abc import Collection, Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from tramark.errors import SettingError, one_line
from tramark.lab.simulation.environment import end_with_parent, single_threaded
from tramark.lab.studies.book import Book
from tramark.lab.studies.study import Bench, Row, Run, Study


class Watcher(Protocol):
    """Sees how a study goes on."""

    def says(self, run: Run, words: str) -> None:
        """A run says how far it is."""

    def ended(self, run: Run, row: Row) -> None:
        """A run has ended with this row; it has `error` if it failed."""


def conduct(
    book: Book,
    runs: Iterable[Run],
    *,
    workers: int,
    data_dir: Path | None,
    watcher: Watcher,
    device: str = "cpu",
) -> list[Row]:
    """Run what has no row yet, some at a time, and return the rows that came of it."""
    if workers < 1:
        raise SettingError(f"{workers} workers: there must be at least one")
    waiting, rows = book.pending(runs), []
    going: dict[Connection, tuple[Run, BaseProcess]] = {}
    bench = Bench(book.work, data_dir, device=device)
    try:
        while waiting or going:
            while len(going) < workers and (run := _next(waiting, [run for run, _ in going.values()], book.work)):
                waiting.remove(run)
                connection, process = _start(book.study, run, bench)
                going[connection] = run, process
                watcher.says(run, "starts")
            for ready in wait(list(going)):
                assert isinstance(ready, Connection)
                run, process = going[ready]
                said = _heard(ready, process)
                if isinstance(said, str):
                    watcher.says(run, said)
                    continue
                del going[ready]
                _stop(ready, process)
                book.write(run, said)
                rows.append(said)
                watcher.ended(run, said)
    finally:
        for connection, (_, process) in going.items():
            process.terminate()
            _stop(connection, process)
    return rows


def _next(waiting: Iterable[Run], going: Collection[Run], work: Path) -> Run | None:
    """The first run that needs no federation, nor the first rounds of one, which a run that goes on may be playing."""
    busy = {folder for run in going for folder in run.unfinished(work)}
    return next((run for run in waiting if not busy & run.waits_for(work)), None)


def _start(study: Study, run: Run, bench: Bench) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_work, args=(theirs, study, run, bench.work, bench.data_dir, bench.device), daemon=True
    )
    with single_threaded():
        process.start()
    theirs.close()
    return ours, process


def _stop(connection: Connection, process: BaseProcess) -> None:
    connection.close()
    process.join()


def _heard(connection: Connection, process: BaseProcess) -> str | Row:
    """What a process sends: words, or at last its row."""
    try:
        kind, text = connection.recv()
    except (EOFError, OSError):
        process.join()
        return {"error": f"its process ended with exit code {process.exitcode}, perhaps for lack of memory"}
    if kind == "says":
        return str(text)
    row: Row = json.loads(text)
    return row


def _work(connection: Connection, study: Study, run: Run, work: Path, data_dir: Path | None, device: str) -> None:
    # An interrupt is for the parent, which then stops us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()

    def say(words: str) -> None:
        connection.send(("says", words))

    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        try:
            row = study.run(run.case, run.seed, Bench(work, data_dir, say, device))
            row.setdefault("seconds", round(time.perf_counter() - began, 1))
            json.dumps(row)
        except Exception as error:
            what = f"{type(error).__name__}: {one_line(error, 500)}"
            row = {"error": what, "traceback": traceback.format_exc()}
    if remarks := list(dict.fromkeys(one_line(str(warning.message), 500) for warning in caught)):
        row["warnings"] = remarks
    connection.send(("row", json.dumps(row)))
