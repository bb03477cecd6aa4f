"""The study `collusion`: models that several clients make together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import plots
from tramark.lab.studies.attacked import Attacked, attack_case, cell, results
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import average, by
from tramark.lab.studies.study import Case, Glance, Row

KINDS = ("right", "wrong", "nobody", "inconclusive")
WAYS = ("average", "mix-tensors", "mix-weights", "extreme")


@dataclass(frozen=True)
class CollusionStudy(Attacked):
    name: str = "collusion"

    def cases(self) -> list[Case]:
        sizes = (2, 3) if self.scale == "smoke" else (2, 3, 5)
        attacks = [(way, {"colluders": size}) for way in WAYS for size in sizes]
        groups: dict[str, tuple[str, str, dict[str, int]]] = {
            "released, as issued": ("released", "issued", {}),
            "ours, as trained": ("ours", "trained", {}),
        }
        if self.scale != "smoke":
            groups["ours, 64 questions, as trained"] = ("ours", "trained", {"questions": 64})
        return [
            attack_case(self, "fashion-mnist", variant, which, attacks, minutes=3.0, changes=changes, group=group)
            for group, (variant, which, changes) in groups.items()
        ]

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (group,), own in by(results(rows), "group").items():
            for attack in dict.fromkeys(one["attack"] for one in own):
                some = [one for one in own if one["attack"] == attack]
                counts = [str(sum(one["verdicts"][kind] for one in some)) for kind in KINDS]
                lines.append([group, attack, cell(some, "ma_before"), cell(some, "ma"), *counts])
        headings = ["method", "attack", "MA before", "MA", *KINDS]
        return (
            f"{markdown_table(headings, lines, left=2)}\n\nCounts of groups of colluders. *Right* names at least one "
            "of them and nobody else; *wrong* names somebody innocent."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        every = results(rows)
        panels = {
            f"{words}, %": {
                group: [
                    (float(size), average([_share(one, kind) for one in own if _size(one) == size], 100) or 0.0)
                    for size in dict.fromkeys(_size(one) for one in own)
                ]
                for (group,), own in by(every, "group").items()
            }
            for kind, words in (("right", "VR: groups with a colluder named"), ("wrong", "innocents accused"))
        }
        return plots.lines(path, panels, across="colluders")

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        found = []
        for (group,), own in by(results(rows), "group").items():
            right, wrong = (average([_share(one, kind) for one in own], 100) for kind in ("right", "wrong"))
            what = f"groups with a colluder named / an innocent accused, TraMark {group}"
            found.append(Glance(what, "–", f"{right:.0f} / {wrong:.0f}"))
        return found


def _share(one: Row, kind: str) -> float:
    return float(one["verdicts"][kind] / max(sum(one["verdicts"].values()), 1))


def _size(one: Row) -> int:
    return int(one["parameters"]["colluders"])
