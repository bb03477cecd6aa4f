"""Publish results: a page for each study, with its table, its picture and all rows, and an index of all pages.

The index is made from the pages' own JSON files, so a page can be made anew by itself. Rows that were published are
taken over: a page of many hours can be made in several sittings, on several machines.
"""

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tramark.lab.studies.book import Book, plain
from tramark.lab.studies.contents import CONTENTS
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.scales import described
from tramark.lab.studies.study import Row, Run, Scale
from tramark.vault.files import pretty, replace_file

INDEX = "studies.md"
READABLE = 0o644


def publish(book: Book, scale: Scale, folder: Path) -> Path:
    """Write a study's page, its JSON and its picture to a folder, and the index anew; returns the page's path."""
    name, rows = book.study.name, book.good()
    page = folder / f"{name}.md"
    drawn = (book.out / "picture.png").exists()
    if drawn:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(book.out / "picture.png", folder / f"{name}.png")
    glances = [[one.what, one.paper, one.ours] for one in (book.study.glance(rows) if rows else ())]
    seeds = sorted({row["seed"] for row in rows})
    published = {"study": name, "scale": scale, "seeds": seeds, "seconds": _seconds(rows), "glance": glances}
    replace_file(folder / f"{name}.json", pretty(published | {"rows": [_tidy(row) for row in rows]}), READABLE)
    replace_file(page, page_text(book, scale, published, drawn=drawn).encode(), READABLE)
    replace_file(folder / INDEX, index_text(folder).encode(), READABLE)
    return page


def take_over(book: Book, scale: Scale, folder: Path, runs: Iterable[Run]) -> int:
    """Keep the published rows of runs that have none in the book, so that a page grows from command to command.

    Rows of another scale or of other settings are left alone. Returns how many were kept.
    """
    path = folder / f"{book.study.name}.json"
    if not path.exists():
        return 0
    published = json.loads(path.read_text())
    if published["scale"] != scale:
        return 0
    rows = {(row["case"], row["seed"]): row for row in published["rows"]}
    missing = [(run, rows.get((run.case.name, run.seed))) for run in runs if not book.path(run).exists()]
    # Numbers in settings were rounded when the row was published.
    same = [(run, row) for run, row in missing if row and row["settings"] == _rounded(plain(run.case.settings))]
    for run, row in same:
        book.keep(run, row)
    return len(same)


def page_text(book: Book, scale: Scale, published: Mapping[str, Any], *, drawn: bool) -> str:
    """A study's page as Markdown."""
    name, rows, entry = book.study.name, book.good(), CONTENTS[book.study.name]
    several = f" --seeds {len(published['seeds'])}" if len(published["seeds"]) > 1 else ""
    command = f"tramark study {name} --scale {scale}{several}"
    parts = [f"# {entry.title}", f"{_source(entry.paper)} {entry.about}", f"Made by `{command}`."]
    if needed := sorted({name for case in book.study.cases() for name in case.sets}):
        files = ", ".join(f"`{one.replace('-', '')}*.npz`" for one in needed)
        parts.append(
            f"Data: {', '.join(needed)}. What cannot be downloaded must be in the folder that `--data-dir` names, as "
            f"{files}."
        )
    if drawn:
        parts.append(f"![{entry.title}]({name}.png)")
    parts.append(book.results())
    federations = {described(one) for row in rows if (one := row["settings"].get("federation"))}
    if federations:
        parts.append("Federations:")
        parts.append("\n".join(f"- {one}" for one in sorted(federations)))
    missing = len(book.study.cases()) - len({row["case"] for row in rows})
    unrun = f" {missing} of {len(book.study.cases())} cases have no result." if missing else ""
    parts.append(
        f"Scale `{scale}`, seeds {', '.join(map(str, published['seeds'])) or 'none'}, "
        f"{math.ceil(published['seconds'] / 60)} minutes of one core.{unrun} "
        f"All rows with their settings: [{name}.json]({name}.json). [All studies]({INDEX})."
    )
    return "\n\n".join(parts) + "\n"


def index_text(folder: Path) -> str:
    """The index of the pages in a folder, in the order of the contents."""
    lines: list[list[str]] = []
    for name, entry in CONTENTS.items():
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        published = json.loads(path.read_text())
        made = f"{published['scale']}, {_counted(len(published['seeds']), 'seed')}"
        for number, (what, paper, ours) in enumerate(published["glance"] or [["", "", ""]]):
            head = [f"[{entry.title}]({name}.md)", entry.paper] if number == 0 else ["", ""]
            lines.append([*head, what, paper, ours, made if number == 0 else ""])
    headings = ["study", "in the paper", "what", "paper", "here", "made at"]
    parts = [
        "# All studies",
        "Every number on these pages was made by the command on its page. At scale `laptop` the "
        "federations are smaller than the paper's (each page says how), so compare differences and rates rather than "
        "accuracies. MA and VR are in percent.",
        markdown_table(headings, lines, left=3),
    ]
    return "\n\n".join(parts) + "\n"


def _source(paper: str) -> str:
    return "Not in the paper." if paper == "ours" else f"In the paper: {paper}."


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _seconds(rows: Sequence[Row]) -> float:
    """The time of all rows. A federation that several rows share counts where it was played."""
    return round(sum(float(row["seconds"]) for row in rows), 1)


def _tidy(row: Row) -> Row:
    """A row with numbers of at most five digits after the point, and without what only the computer needs."""
    return {name: _rounded(value) for name, value in row.items() if name != "digest"}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5) if abs(value) >= 1e-3 else value
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return {name: _rounded(one) for name, one in value.items()} if isinstance(value, dict) else value
