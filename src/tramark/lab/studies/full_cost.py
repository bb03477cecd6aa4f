"""The study `full-cost`: seconds of a whole round of the server."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.cost import NOTE, TRAMARK
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import average, by, given, number, where
from tramark.lab.studies.scales import title
from tramark.lab.studies.served import Served
from tramark.lab.studies.study import Glance, Row


@dataclass(frozen=True)
class FullCost(Served):
    name: str = "full-cost"

    def table(self, rows: Sequence[Row]) -> str:
        lines = [
            [
                title(variant),
                number([row["seconds_collect"] for row in own]),
                number([row["seconds_verify"] for row in own]),
                number(_whole(own)),
                given(paper.FULL_SECONDS.get(_paper(variant))),
            ]
            for (variant,), own in by(rows, "variant").items()
        ]
        headings = ["method", "aggregation and marks, s", "verification, s", "all, s", "all, paper"]
        return f"{markdown_table(headings, lines)}\n\nVerification is that of all clients' models. {NOTE}"

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        names = list(dict.fromkeys(row["settings"]["variant"] for row in rows))
        ours = [average(_whole(where(rows, variant=name))) for name in names]
        theirs = [paper.FULL_SECONDS.get(_paper(name)) for name in names]
        label = "seconds of the server in a round"
        groups = [title(name) for name in names]
        return plots.dots(path, groups, {label: {"here": ours}}, paper={label: {"here": theirs}}, log=True)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        theirs = paper.FULL_SECONDS["tramark"] / paper.FULL_SECONDS["waffle"]
        waffle = average(_whole(where(rows, variant="waffle")))
        found = []
        for variant in ("released", "ours"):
            own = average(_whole(where(rows, variant=variant)))
            ratio = f"{own / waffle:.2f}" if own is not None and waffle else "–"
            found.append(Glance(f"time of the server, {title(variant)}, over WAFFLE's", f"{theirs:.2f}", ratio))
        return found


def _whole(rows: Sequence[Row]) -> list[float]:
    return [row["seconds_collect"] + row["seconds_verify"] for row in rows]


def _paper(variant: str) -> str:
    return "tramark" if variant in TRAMARK else variant
