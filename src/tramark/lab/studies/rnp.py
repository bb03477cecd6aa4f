"""The study `rnp`: reconstructive neuron pruning, with its threshold swept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.attacked import MODELS, Attacked, attack_case, cell, results
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import by, given, where
from tramark.lab.studies.scales import datasets, title
from tramark.lab.studies.study import Case, Glance, Row

THRESHOLDS = tuple(step / 20 for step in range(1, 19))
SERIES = (("released", "issued"), ("ours", "issued"), ("ours", "trained"))


@dataclass(frozen=True)
class Rnp(Attacked):
    name: str = "rnp"

    def cases(self) -> list[Case]:
        thresholds = {"smoke": (0.1, 0.9), "laptop": (0.2, 0.5, 0.8), "paper": THRESHOLDS}[self.scale]
        attacks = [("rnp", {"threshold": threshold}) for threshold in thresholds]
        thieves = {"smoke": 1, "laptop": 3, "paper": None}[self.scale]
        return [
            attack_case(self, data, variant, which, attacks, thieves=thieves, minutes=2.0)
            for data in datasets(self.scale, "fashion-mnist", "cifar-10", "cifar-100")
            for variant, which in SERIES
        ]

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (data, variant, which), own in by(results(rows), "data", "variant", "which").items():
            theirs = paper.RNP[data]
            for threshold in dict.fromkeys(one["parameters"]["threshold"] for one in own):
                some = [one for one in own if one["parameters"]["threshold"] == threshold]
                cells = [
                    cell(some, "ma_before"),
                    cell(some, "ma"),
                    given(theirs.ma),
                    cell(some, "vr"),
                    given(theirs.vr),
                ]
                lines.append([title(data), title(variant), MODELS[which], str(threshold), *cells])
        headings = ["data", "method", "models", "threshold", "MA before", "MA", "MA, paper", "VR", "VR, paper"]
        return f"{markdown_table(headings, lines, left=3)}\n\nIn percent. {paper.SLIPS['tab: rnp']}"

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        every = results(rows)
        data = list(dict.fromkeys(row["settings"]["data"] for row in rows))
        panels = {
            f"{label}, %, {title(place)}": {
                f"{title(variant)}, {MODELS[which]}": [
                    (one["parameters"]["threshold"], 100 * one[name])
                    for one in where(every, data=place, variant=variant, which=which)
                    if one["seed"] == 0
                ]
                for variant, which in SERIES
            }
            for place in data[:2]
            for name, label in (("ma", "MA"), ("vr", "VR"))
        }
        return plots.lines(path, panels, across="threshold")

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        every = results(rows)
        theirs = sum(score.vr or 0 for score in paper.RNP.values()) / len(paper.RNP)
        return [
            Glance(
                f"VR after RNP where MA is kept, {title(variant)} {MODELS[which]}",
                f"{theirs:.1f} (some MA lost)",
                cell([one for one in where(every, variant=variant, which=which) if not one["dead"]], "vr"),
            )
            for variant, which in SERIES
        ]
