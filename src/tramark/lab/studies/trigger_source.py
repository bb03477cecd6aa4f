"""The study `trigger-source`: Table 2, triggers from other data, with a t-test of MA over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import NONE, average, by, column, given, percent, t_test, where
from tramark.lab.studies.paper import Score
from tramark.lab.studies.played import Played
from tramark.lab.studies.scales import case, datasets, federation, title
from tramark.lab.studies.study import Case, Glance, Row
from tramark.lab.studies.tables import NOTE

SOURCES = ("mnist", "svhn", "waffle")


@dataclass(frozen=True)
class TriggerSource(Played):
    name: str = "trigger-source"

    def cases(self) -> list[Case]:
        cases = []
        for data in datasets(self.scale, "cifar-10", "cifar-100", "tiny-imagenet"):
            cases += [
                case(
                    f"{data}-released-{source}",
                    # MNIST is the default: so the federation is that of `main`.
                    federation(data, self.scale, "released", **({} if source == "mnist" else {"triggers": source})),
                    data=data,
                    variant="released",
                    source=source,
                )
                for source in SOURCES
            ]
            ours = federation(data, self.scale, "ours")
            cases.append(case(f"{data}-ours", ours, data=data, variant="ours", source="patterns"))
        return cases

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (data, variant, source), own in by(rows, "data", "variant", "source").items():
            theirs = paper.TRIGGER_SOURCE[data].get(source, Score())
            mnist = where(rows, data=data, variant="released", source="mnist")
            compared = variant == "released" and source != "mnist"
            p = t_test([row["ma"] for row in own], [row["ma"] for row in mnist]) if compared else None
            lines.append(
                [
                    *map(title, (data, variant, source)),
                    percent(column(own, "ma")),
                    given(theirs.ma),
                    NONE if p is None else f"{p:.2f}",
                    "≥ 0.05" if compared else NONE,
                    percent(column(own, "vr"), 1),
                    percent(column(own, "vr_trained"), 1),
                    given(theirs.vr),
                ]
            )
        headings = ["data", "method", "triggers", "MA", "MA, paper", "p", "p, paper", "VR", "VR, trained", "VR, paper"]
        return (
            f"{markdown_table(headings, lines, left=3)}\n\n{NOTE} p is that of Welch's t-test of MA against MNIST's "
            "over seeds; it takes at least two."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        data = list(dict.fromkeys(row["settings"]["data"] for row in rows))
        panels = {
            label: {
                source: [average(column(where(rows, data=one, source=source), name), 100) for one in data]
                for source in (*SOURCES, "patterns")
            }
            for name, label in (("ma", "MA, %"), ("vr", "VR as issued, %"), ("vr_trained", "VR as trained, %"))
        }
        return plots.dots(path, [title(one) for one in data], panels)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        return [
            Glance(
                f"VR with triggers from {title(source)}, TraMark, released",
                "100.00",
                given(average(column(where(rows, source=source), "vr"), 100)),
            )
            for source in SOURCES
        ]
