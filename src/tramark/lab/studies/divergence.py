"""The study `divergence`: Fig. 5, how far models diverge on triggers over rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.interval import Curves, at, curve, ends
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import by, number, percent, where
from tramark.lab.studies.scales import title
from tramark.lab.studies.study import Glance, Row


@dataclass(frozen=True)
class Divergence(Curves):
    name: str = "divergence"

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (data, variant), own in by(rows, "data", "variant").items():
            for when in ("first", "middle", "last"):
                points = [one for row in own if (one := at(row, when))]
                if points:
                    cells = [number([one["kl"] for one in points]), percent([one["vr"] for one in points], 1)]
                    lines.append([title(data), title(variant), f"{when} ({points[0]['round']})", *cells])
        return (
            f"{markdown_table(['data', 'method', 'marked round', 'KL', 'VR'], lines, left=3)}\n\nThe paper's figure "
            f"has no numbers; its text says: {paper.DIVERGENCE_SAID}."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        panels = {}
        for data in list(dict.fromkeys(row["settings"]["data"] for row in rows))[:2]:
            for name, label, scale in (("kl", "KL", 1.0), ("vr", "VR, %", 100.0)):
                panels[f"{label}, {title(data)}"] = {
                    variant: curve(where(rows, data=data, variant=variant), name, scale)
                    for variant in ("released", "ours")
                }
        return plots.lines(path, panels, across="round")

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        return [
            Glance(f"KL from first to last marked round, {title(variant)}", "rises", ends(own, "kl"))
            for (variant,), own in by(rows, "variant").items()
        ]
