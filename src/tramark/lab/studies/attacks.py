"""The study `attacks`: Fig. 2, pruning and fine-tuning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.attacked import MODELS, Attacked, attack_case, cell, results
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import average, where
from tramark.lab.studies.scales import datasets, title
from tramark.lab.studies.study import Case, Glance, Row

SHARES = (0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
COLUMNS = (("released", "issued"), ("ours", "issued"), ("ours", "trained"))


@dataclass(frozen=True)
class Attacks(Attacked):
    name: str = "attacks"

    def cases(self) -> list[Case]:
        epochs = {"smoke": (1,), "laptop": (10, 30), "paper": (1, 5, 10, 20, 30)}[self.scale]
        shares = SHARES[::3] if self.scale == "smoke" else SHARES
        attacks = [("prune-global", {"share": share}) for share in shares]
        attacks += [("fine-tune", {"epochs": count, "lr": 0.01}) for count in epochs]
        thieves = {"smoke": 1, "laptop": 5, "paper": None}[self.scale]
        return [
            attack_case(self, data, variant, which, attacks, thieves=thieves, minutes=2.5)
            for data in datasets(self.scale)
            for variant, which in COLUMNS
        ]

    def table(self, rows: Sequence[Row]) -> str:
        every = results(rows)
        lines = []
        for attack in dict.fromkeys(one["attack"] for one in every):
            own = [[one for one in where(every, variant=v, which=w) if one["attack"] == attack] for v, w in COLUMNS]
            lines.append([attack, *(cell(some, name) for some in own for name in ("ma", "vr"))])
        headings = [f"{name}, {title(v)} {MODELS[w]}" for v, w in COLUMNS for name in ("MA", "VR")]
        return (
            f"{markdown_table(['attack', *headings], lines)}\n\nIn percent, in the mean over data sets. † more than 15 "
            f"points of MA lost in most of them: nothing is left to protect. The paper's figure has no numbers; its "
            f"text says: {paper.ATTACKS_SAID}."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        every = results(rows)
        panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for attack, parameter, scale, words in (
            ("prune-global", "share", 100.0, "% pruned"),
            ("fine-tune", "epochs", 1.0, "epochs of fine-tuning"),
        ):
            for name, label in (("ma", "MA"), ("vr", "VR")):
                panels[f"{label}, %, by {words}"] = {
                    f"{title(v)}, {MODELS[w]}": [
                        (scale * value, average([one.get(name) for one in some], 100) or 0.0)
                        for value, some in _by_parameter(where(every, variant=v, which=w), attack, parameter).items()
                    ]
                    for v, w in COLUMNS
                }
        return plots.lines(path, panels, across="")

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        every = results(rows)

        def vr(variant: str, which: str, attack: str, **parameters: float) -> str:
            found = [
                one
                for one in where(every, variant=variant, which=which)
                if one["name"] == attack and all(one["parameters"].get(k) == v for k, v in parameters.items())
            ]
            return cell(found, "vr")

        found = []
        for v, w in (("released", "issued"), ("ours", "trained")):
            pruned, tuned = vr(v, w, "prune-global", share=0.7), vr(v, w, "fine-tune", epochs=30)
            found += [
                Glance(f"VR after pruning 70 %, {title(v)} {MODELS[w]}", "kept", pruned),
                Glance(f"VR after 30 epochs of fine-tuning, {title(v)} {MODELS[w]}", "stable", tuned),
            ]
        return found


def _by_parameter(found: Sequence[Row], attack: str, parameter: str) -> dict[float, list[Row]]:
    groups: dict[float, list[Row]] = {}
    for one in found:
        if one["name"] == attack:
            groups.setdefault(float(one["parameters"][parameter]), []).append(one)
    return groups
