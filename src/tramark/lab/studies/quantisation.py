"""The study `quantisation`: models in FP16 and INT8."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.attacked import MODELS, Assaults, Attacked, attack_case, cell, results
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import average, by, given, where
from tramark.lab.studies.scales import datasets, title
from tramark.lab.studies.study import Case, Glance, Row

FORMATS = {"cast": "FP16", "int8": "INT8"}
SERIES = (("released", "issued"), ("ours", "issued"), ("ours", "trained"))


@dataclass(frozen=True)
class Quantisation(Attacked):
    name: str = "quantisation"

    def cases(self) -> list[Case]:
        attacks: Assaults = [(attack, {}) for attack in FORMATS]
        return [
            attack_case(self, data, variant, which, attacks, samples=None, minutes=1.0)
            for data in datasets(self.scale)
            for variant, which in SERIES
        ]

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (data, variant, which), own in by(results(rows), "data", "variant", "which").items():
            for attack, name in FORMATS.items():
                some = [one for one in own if one["name"] == attack]
                theirs = paper.QUANTISATION[data][name]
                cells = [cell(some, "ma_before", 2), cell(some, "ma", 2), given(theirs.ma), cell(some, "vr")]
                lines.append([title(data), title(variant), MODELS[which], name, *cells, given(theirs.vr)])
        headings = ["data", "method", "models", "format", "MA in FP32", "MA", "MA, paper", "VR", "VR, paper"]
        return f"{markdown_table(headings, lines, left=4)}\n\nIn percent. {paper.SLIPS['tab:quanti_attack']}"

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        every = results(rows)
        data = list(dict.fromkeys(row["settings"]["data"] for row in rows))
        groups = [f"{title(one)}\n{name}" for one in data for name in FORMATS.values()]

        def series(number: str, variant: str, which: str) -> list[float | None]:
            return [
                average(
                    [
                        one.get(number) if number == "vr" else one["ma"] - one["ma_before"]
                        for one in where(every, data=place, variant=variant, which=which)
                        if one["name"] == attack and "ma" in one
                    ],
                    100,
                )
                for place in data
                for attack in FORMATS
            ]

        panels = {
            label: {f"{title(v)}, {MODELS[w]}": series(number, v, w) for v, w in SERIES}
            for number, label in (("ma", "MA minus FP32's, points"), ("vr", "VR, %"))
        }
        return plots.dots(path, groups, panels)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        every = results(rows)
        return [
            Glance(
                f"VR in {name}, {title(variant)} {MODELS[which]}",
                given(paper.QUANTISATION_MEAN[name].vr),
                cell([one for one in where(every, variant=variant, which=which) if one["name"] == attack], "vr"),
            )
            for variant, which in (("released", "issued"), ("ours", "trained"))
            for attack, name in FORMATS.items()
        ]
