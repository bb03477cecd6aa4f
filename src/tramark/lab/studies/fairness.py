"""The study `fairness`: accuracy of each client's model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev

from tramark.lab.studies import paper, plots
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import where
from tramark.lab.studies.played import Played
from tramark.lab.studies.scales import case, datasets, federation, title
from tramark.lab.studies.study import Case, Glance, Row


@dataclass(frozen=True)
class Fairness(Played):
    name: str = "fairness"

    def cases(self) -> list[Case]:
        return [
            case(f"{data}-{variant}", federation(data, self.scale, variant), data=data, variant=variant)
            for data in datasets(self.scale, *paper.FAIRNESS)
            for variant in ("released", "ours")
        ]

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for data in dict.fromkeys(row["settings"]["data"] for row in rows):
            theirs = [value / 100 for value in paper.FAIRNESS[data]]
            own = {
                f"{title(r['settings']['variant'])}, seed {r['seed']}": r["clients_ma"] for r in where(rows, data=data)
            }
            for words, values in {"paper": theirs, **own}.items():
                spread = f"{100 * pstdev(values):.2f}"
                ends = f"{100 * min(values):.2f} – {100 * max(values):.2f}"
                lines.append([title(data), words, f"{100 * mean(values):.2f}", spread, ends])
        table = markdown_table(["data", "method", "mean MA", "standard deviation", "least – most"], lines, left=2)
        return f"{table}\n\nIn percent, over clients. {paper.SLIPS['tab:fairness_cifar']}"

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        first = [row for row in rows if row["seed"] == 0]
        panels = {}
        for data in dict.fromkeys(row["settings"]["data"] for row in first):
            curves = {row["settings"]["variant"]: _centred(row["clients_ma"], 100) for row in where(first, data=data)}
            panels[f"MA minus the mean, points, {title(data)}"] = {
                **curves,
                "the paper's": _centred(paper.FAIRNESS[data], 1),
            }
        return plots.lines(path, panels, across="client", percent=False)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        found = []
        for data, spread in paper.FAIRNESS_SPREAD.items():
            for variant in ("released", "ours"):
                own = [100 * pstdev(row["clients_ma"]) for row in where(rows, data=data, variant=variant)]
                if own:
                    what = f"standard deviation of clients' MA, {title(data)}, {title(variant)}"
                    found.append(Glance(what, f"{spread:.2f}", f"{mean(own):.2f}"))
        return found


def _centred(values: Sequence[float], scale: float) -> list[tuple[float, float]]:
    middle = mean(values)
    return [(float(client), scale * (value - middle)) for client, value in enumerate(values)]
