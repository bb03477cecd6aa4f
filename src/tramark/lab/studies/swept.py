"""The base of studies that vary one setting of the released code's marks, with FedAvg and our marks beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tramark.lab.studies import plots
from tramark.lab.studies.numbers import average, by, column, where
from tramark.lab.studies.paper import Score
from tramark.lab.studies.played import Played
from tramark.lab.studies.scales import datasets, title
from tramark.lab.studies.study import Row, Scale
from tramark.lab.studies.tables import scores


@dataclass(frozen=True)
class Swept(Played):
    """A study of `values` of one setting; `label` is what rows call it, and `across` what the picture does.

    `theirs` are the paper's scores by the setting's value.
    """

    label: str = ""
    across: str = ""
    log: bool = False
    theirs: ClassVar[Mapping[float, Score]] = {}

    def table(self, rows: Sequence[Row]) -> str:
        labels = {"data": "data", "method": "variant", self.label: self.label}
        table = scores(rows, labels, lambda key: self.theirs.get(float(key[2])))
        return f"{table} The paper's numbers are means over its four data sets, IID."

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        with_split = [row | {"settings": {"split": "iid", **row["settings"]}} for row in rows]
        splits = [split for (split,) in by(with_split, "split")]
        panels = {
            f"{words}, %": {
                f"{title(variant)}, {title(split)}" if len(splits) > 1 else variant: self._curve(
                    where(with_split, split=split, variant=variant), name
                )
                for variant in dict.fromkeys(row["settings"]["variant"] for row in rows)
                for split in splits
            }
            for name, words in (("ma", "MA"), ("vr", "VR as issued"))
        }
        return plots.lines(path, panels, across=self.across, log=self.log)

    def _curve(self, rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
        """The mean over data sets and seeds by the value of the setting."""
        values = dict.fromkeys(row["settings"][self.label] for row in rows if row["settings"][self.label] is not None)
        points = ((value, average(column(where(rows, **{self.label: value}), name), 100)) for value in values)
        return [(float(value), mean) for value, mean in points if mean is not None]


def sweep_data(scale: Scale) -> tuple[str, ...]:
    """The data sets of a sweep: all four, or Fashion-MNIST alone where time is short."""
    return datasets(scale) if scale == "paper" else ("fashion-mnist",)
