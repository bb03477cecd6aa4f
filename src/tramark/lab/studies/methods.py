"""The study `methods`: what each method can do, beside the paper's table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.methods import METHODS
from tramark.lab.methods.table import COLUMNS, columns, summary
from tramark.lab.studies import paper, plots
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.played import Scaled
from tramark.lab.studies.study import Bench, Case, Glance, Row

WORDS = {True: "yes", False: "no"}


@dataclass(frozen=True)
class Methods(Scaled):
    name: str = "methods"

    def cases(self) -> list[Case]:
        return [Case(name, {"method": name}) for name in METHODS]

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        method = METHODS[case.settings["method"]]
        return {"columns": columns(method), "summary": summary(method)}

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for row in rows:
            theirs = paper.METHODS.get(row["case"], {})
            cells = []
            for column in COLUMNS:
                here, there = row["columns"][column], theirs.get(column)
                cells.append(WORDS[here] + ("" if there in (None, here) else f" (paper: {WORDS[there]})"))
            lines.append([row["case"], *cells, row["summary"]])
        headings = ["method", *(name.replace("_", " ") for name in COLUMNS), "what it does"]
        return (
            f"{markdown_table(headings, lines, left=len(headings))}\n\nWhere the paper's table says something else, "
            "that is in brackets: FedIPR decides by bits in the weights and only reports triggers, and RobWE's clients "
            "embed the marks."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        names = [row["case"] for row in rows]
        label = "what it can do (one mark each)"
        panels = {
            label: {
                column.replace("_", " "): [float(place) if row["columns"][column] else None for row in rows]
                for place, column in enumerate(COLUMNS)
            }
        }
        return plots.dots(path, names, panels)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        compared = [
            row["columns"][column] == there
            for row in rows
            for column, there in paper.METHODS.get(row["case"], {}).items()
        ]
        return [Glance("entries of the table that agree", "–", f"{sum(compared)} of {len(compared)}")]
