"""The base of studies that compare federations by several methods on one task or more, in tables of MA and VR."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import plots
from tramark.lab.studies.numbers import average, by, column, given, paired, where
from tramark.lab.studies.played import Played
from tramark.lab.studies.scales import title
from tramark.lab.studies.study import Row
from tramark.lab.studies.tables import scores


@dataclass(frozen=True)
class Beside(Played):
    """A study whose rows have the labels `group` (a line of the picture) and `variant` (the method)."""

    heading: str = "federation"

    def table(self, rows: Sequence[Row]) -> str:
        return scores(rows, {self.heading: "group", "method": "variant"})

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        groups = [group for (group,) in by(rows, "group")]
        variants = [variant for (variant,) in by(rows, "variant")]
        panels = {
            label: {
                variant: [average(column(where(rows, group=one, variant=variant), name), 100) for one in groups]
                for variant in variants
                if name == "ma" or variant != "fedavg"
            }
            for name, label in (("ma", "MA, %"), ("vr", "VR as issued, %"), ("vr_trained", "VR as trained, %"))
        }
        return plots.dots(path, [title(one) for one in groups], panels)


def drop(rows: Sequence[Row], variant: str = "ours") -> str:
    """MA minus FedAvg's in points, in the mean over groups and seeds."""
    differs = [
        100 * value
        for (group,), own in by(where(rows, variant=variant), "group").items()
        for value in paired(own, where(rows, group=group, variant="fedavg"))
    ]
    return given(average(differs), "+.2f")


def rate(rows: Sequence[Row], variant: str = "ours", name: str = "vr_trained") -> str:
    """VR in percent, in the mean over groups and seeds."""
    return given(average(column(where(rows, variant=variant), name), 100))
