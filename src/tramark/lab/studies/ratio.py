"""The study `ratio`: Fig. 4 left, the share k of the weights that bear marks."""

from collections.abc import Sequence
from dataclasses import dataclass

from tramark.lab.studies import paper
from tramark.lab.studies.numbers import average, column, given, where
from tramark.lab.studies.scales import case, federation
from tramark.lab.studies.study import Case, Glance, Row
from tramark.lab.studies.swept import Swept, sweep_data

RATIOS = (0.001, 0.005, 0.01, 0.05)


@dataclass(frozen=True)
class Ratio(Swept):
    name: str = "ratio"
    label: str = "k"
    across: str = "share of the weights, k"
    log: bool = True
    theirs = paper.RATIO

    def cases(self) -> list[Case]:
        ratios = {"smoke": RATIOS[::2], "laptop": RATIOS[1:], "paper": RATIOS}[self.scale]
        return [
            case(
                f"{data}-released-{k}",
                federation(data, self.scale, "released", ratio=k),
                data=data,
                variant="released",
                k=k,
            )
            for data in sweep_data(self.scale)
            for k in ratios
        ]

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        return [
            Glance(
                f"VR at k = {100 * k:g} %, TraMark, released",
                given(paper.RATIO[k].vr),
                given(average(column(where(rows, k=k), "vr"), 100)),
            )
            for k in (0.005, 0.01, 0.05)
        ]
