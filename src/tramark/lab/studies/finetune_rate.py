"""The study `finetune-rate`: Fig. 6, fine-tuning at larger rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.attacked import MODELS, Attacked, attack_case, cell, results
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import average, by, where
from tramark.lab.studies.scales import datasets, title
from tramark.lab.studies.study import Case, Glance, Row

RATES = (0.01, 0.03, 0.05, 0.1)
SERIES = (("released", "issued"), ("ours", "issued"), ("ours", "trained"))


@dataclass(frozen=True)
class FinetuneRate(Attacked):
    name: str = "finetune-rate"

    def cases(self) -> list[Case]:
        rates = {"smoke": RATES[::3], "laptop": (0.01, 0.05, 0.1), "paper": RATES}[self.scale]
        epochs = 1 if self.scale == "smoke" else 30
        attacks = [("fine-tune", {"epochs": epochs, "lr": rate}) for rate in rates]
        thieves = {"smoke": 1, "laptop": 3, "paper": None}[self.scale]
        return [
            attack_case(self, data, variant, which, attacks, thieves=thieves, minutes=3.7)
            for data in datasets(self.scale, "cifar-100", "tiny-imagenet")
            for variant, which in SERIES
        ]

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (data, variant, which), own in by(results(rows), "data", "variant", "which").items():
            for rate in dict.fromkeys(one["parameters"]["lr"] for one in own):
                some = [one for one in own if one["parameters"]["lr"] == rate]
                cells = [cell(some, name) for name in ("ma_before", "ma", "vr")]
                lines.append([title(data), title(variant), MODELS[which], str(rate), *cells])
        table = markdown_table(["data", "method", "models", "rate", "MA before", "MA", "VR"], lines, left=3)
        return (
            f"{table}\n\nIn percent. † more than 15 points of MA lost. The paper's figure has no numbers; its text "
            f"says: {paper.FINETUNE_RATE_SAID}."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        every = results(rows)
        panels = {
            f"{label}, %, {title(data)}": {
                f"{title(variant)}, {MODELS[which]}": [
                    (one["parameters"]["lr"], 100 * one[name])
                    for one in where(every, data=data, variant=variant, which=which)
                    if one["seed"] == 0
                ]
                for variant, which in SERIES
            }
            for data in dict.fromkeys(row["settings"]["data"] for row in rows)
            for name, label in (("ma", "MA"), ("vr", "VR"))
        }
        return plots.lines(path, panels, across="rate", log=True)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        alive = [one for one in results(rows) if not one["dead"]]
        found = []
        for variant, which in SERIES:
            value = average([one["vr"] for one in where(alive, variant=variant, which=which)], 100)
            shown = "–" if value is None else f"{value:.1f}"
            found.append(Glance(f"VR where MA is kept, {title(variant)} {MODELS[which]}", "kept", shown))
        return found
