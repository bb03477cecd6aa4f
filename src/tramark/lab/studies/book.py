"""The folder of a study: a file for each row, and results.json, table.md and a picture made from the rows there are."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tramark.errors import SettingError
from tramark.lab.studies.study import Row, Run, Study
from tramark.vault.files import pretty, replace_file

READABLE = 0o644


class Book:
    """The rows of a study in a folder.

    A row of a run that failed has `error`. It counts as a row for tables, but the run is still to be done.
    """

    def __init__(self, study: Study, out: Path, work: Path | None = None) -> None:
        self.study = study
        self.out = out
        self.work = work or out / "work"
        """Where runs keep what other runs can use; several studies can share it."""

    def path(self, run: Run) -> Path:
        return self.out / "rows" / f"{run.name}.json"

    def pending(self, runs: Iterable[Run]) -> list[Run]:
        """The runs that have no row yet, or failed. Rows of other settings raise `SettingError`."""
        rows = [(run, _read(self.path(run))) for run in runs]
        if others := [_changed(run, row) for run, row in rows if row and row["digest"] != run.digest]:
            raise SettingError(
                f"{self.out} has rows that were made with other settings: {'; '.join(others)}. Give another folder, or "
                "--again to delete these rows and run their cases again"
            )
        return [run for run, row in rows if row is None or "error" in row]

    def write(self, run: Run, row: Row) -> None:
        """Keep a run's row, and bring the table and the picture up to date."""
        self.keep(run, row)
        self.write_up()

    def keep(self, run: Run, row: Row) -> None:
        """Keep a run's row."""
        about = {"case": run.case.name, "seed": run.seed, "settings": dict(run.case.settings), "digest": run.digest}
        replace_file(self.path(run), pretty(row | about), READABLE)

    def forget(self, runs: Iterable[Run]) -> None:
        """Delete the rows of these runs, so that they are run again."""
        for run in runs:
            self.path(run).unlink(missing_ok=True)

    def rows(self) -> list[Row]:
        """All rows of the study's cases as they are set now, also those of earlier runs, in the order of the cases."""
        return self._sorted_out()[0]

    def write_up(self) -> bool:
        """Write results.json, table.md and the picture; False if matplotlib is missing."""
        rows = [{name: value for name, value in row.items() if name != "traceback"} for row in self.rows()]
        replace_file(self.out / "results.json", pretty({"study": self.study.name, "rows": rows}), READABLE)
        replace_file(self.out / "table.md", self.table().encode(), READABLE)
        good = self.good()
        return not good or all(self.study.picture(good, self.out / f"picture.{kind}") for kind in ("png", "svg"))

    def good(self) -> list[Row]:
        """The rows of runs that did not fail."""
        return _good(self.rows())

    def table(self) -> str:
        """A heading and the study's table as Markdown."""
        parts = [f"# {self.study.name}", self.study.about, self.results()]
        return "\n\n".join(parts) + "\n"

    def results(self) -> str:
        """The table with what failed or is left out below it."""
        rows, others = self._sorted_out()
        good, lost = _good(rows), [row for row in rows if "error" in row]
        parts = []
        if good:
            parts.append(self.study.table(good).strip())
        if lost:
            parts.append("Failed:")
            parts.append("\n".join(f"- {row['case']}, seed {row['seed']}: {row['error']}" for row in lost))
        if others:
            parts.append(f"Left out, as they were made with other settings: {', '.join(others)}.")
        return "\n\n".join(parts)

    def _sorted_out(self) -> tuple[list[Row], list[str]]:
        """The rows that belong to the study as it is set now, and the names of the others."""
        order = {case.name: place for place, case in enumerate(self.study.cases())}
        digests = {case.name: Run(case, 0).digest for case in self.study.cases()}
        ours, others = [], []
        for path in sorted((self.out / "rows").glob("*.json")):
            row = _read(path)
            if row and row["digest"] == digests.get(row["case"]):
                ours.append(row)
            else:
                others.append(path.stem)
        return sorted(ours, key=lambda row: (order[row["case"]], row["seed"])), others


def _good(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "error" not in row]


def _read(path: Path) -> Row | None:
    try:
        row: Row = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        row = {}
    if not isinstance(row, dict) or not {"case", "seed", "settings", "digest"} <= row.keys():
        raise SettingError(f"{path} is not a row of a study: move it away")
    return row


def _changed(run: Run, row: Row) -> str:
    """What is different in a row's settings."""
    was, now = dict(row["settings"]), plain(run.case.settings)
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return f"{run.name} ({', '.join(f'{name} was {was.get(name)}, is {now.get(name)}' for name in names)})"


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from a file: tuples as lists."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(settings)))
    return plain
