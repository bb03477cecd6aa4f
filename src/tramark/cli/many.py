"""Trace many suspects, or those that appear in a folder, one after the other."""

import csv
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from tramark.cli.common import EXIT, INCOMPLETE
from tramark.cli.desk import Desk
from tramark.cli.trace import Job, traced
from tramark.errors import SettingError, TramarkError, VaultError, one_line

COLUMNS = ("suspect", "finding", "clients", "queries", "case", "bound", "power", "doubt", "error")
PAUSE = 2.0
"""Seconds between two looks into a folder that is watched."""


def trace_many(desk: Desk, targets: Iterable[str], job: Job, table: Path | None) -> int:
    """Traces suspects one after the other, each a case; one that fails does not stop the others."""
    if table is not None:
        _begin(table)
    codes = set()
    for target in targets:
        row: dict[str, Any] = {"suspect": target}
        try:
            verdict, _ = traced(desk, target, job)
            found = verdict.to_dict()
            row |= {name: found[name] for name in ("finding", "queries", "case", "power", "doubt")}
            row |= {"clients": ";".join(verdict.clients), "bound": verdict.false_accusation_bound}
            codes.add(EXIT[verdict.finding])
        except (TramarkError, OSError) as error:
            # A vault that refuses one suspect refuses all.
            if isinstance(error, VaultError):
                raise
            row |= {"finding": "failed", "error": one_line(error)}
            codes.add(INCOMPLETE)
        if table is not None:
            with table.open("a", newline="") as file:
                csv.DictWriter(file, COLUMNS).writerow(row)
        said = row.get("clients") or row["finding"]
        typer.echo(json.dumps(row) if job.as_json else f"{target}: {said}{_because(row)}")
    return next((code for code in (INCOMPLETE, 0, EXIT["inconclusive"]) if code in codes), EXIT["nobody"])


def appearing(folder: Path) -> Iterator[str]:
    """The files and folders of a folder, each once it has stopped growing; then those that appear later."""
    sizes: dict[Path, int] = {}
    done: set[Path] = set()
    while True:
        for path in sorted(folder.iterdir()):
            if path in done or path.name.startswith("."):
                continue
            files = path.rglob("*") if path.is_dir() else (path,)
            size = sum(file.stat().st_size for file in files if file.is_file())
            if sizes.get(path) == size:
                done.add(path)
                yield str(path)
            sizes[path] = size
        time.sleep(PAUSE)


def and_then(named: Sequence[str], folder: Path) -> Iterator[str]:
    """The suspects named, and then those that appear in a folder."""
    yield from named
    yield from appearing(folder)


def _begin(table: Path) -> None:
    """Writes the head of a table; a table of earlier traces is added to."""
    if not table.exists():
        with table.open("w", newline="") as file:
            csv.writer(file).writerow(COLUMNS)
        return
    with table.open(newline="") as file:
        if next(csv.reader(file), []) != list(COLUMNS):
            raise SettingError(f"{table} exists and is no table of traces: nothing is overwritten")


def _because(row: dict[str, Any]) -> str:
    why = row.get("error") or row.get("doubt")
    return f" ({why})" if why else ""
