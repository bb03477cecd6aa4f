"""What became of each federation of the zoo, over its seeds, and whether that is what we ask for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from tramark.lab.studies.study import Row

VR_ISSUED = 1.0
"""All models as issued must be traced to their clients."""

VR_TRAINED = 0.95
"""The share of models, as their clients have trained them, that must be traced."""

WORST = -1.0
"""No federation may lose more accuracy to its marks, in points."""

MEAN = -0.3
"""All federations together may lose no more in the mean, in points."""


@dataclass(frozen=True)
class Result:
    """One federation's rows, one for each seed."""

    name: str
    held_back: bool
    rows: tuple[Row, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        """What its federation is."""
        settings: dict[str, Any] = self.rows[0]["settings"]
        return settings

    def values(self, column: str) -> list[float]:
        """A number of each row. MA is in points."""
        if column == "difference":
            return [100 * (row["ma_issued"] - row["ma_fedavg"]) for row in self.rows]
        return [(100 if column.startswith("ma_") else 1) * row[column] for row in self.rows]

    @property
    def difference(self) -> float:
        """MA of the issued models minus FedAvg's, in points, in the mean over seeds."""
        return mean(self.values("difference"))

    @property
    def left(self) -> float:
        """The share of answers left after training, in the mean over seeds."""
        return mean(self.values("left"))

    @property
    def traced_as_issued(self) -> bool:
        return min(self.values("vr_issued")) >= VR_ISSUED

    @property
    def traced_as_trained(self) -> bool:
        return min(self.values("vr_trained")) >= VR_TRAINED

    @property
    def traced_by_scores(self) -> bool:
        return min(self.values("vr_scores")) >= VR_TRAINED

    @property
    def cheap(self) -> bool:
        return self.difference >= WORST

    @property
    def meets_all(self) -> bool:
        return self.traced_as_issued and self.traced_as_trained and self.cheap

    @property
    def meets_with_scores(self) -> bool:
        return self.traced_as_issued and self.traced_by_scores and self.cheap


def results_of(rows: Sequence[Row], held_back: Collection[str]) -> list[Result]:
    """The rows by federation, in their order."""
    names = dict.fromkeys(row["case"] for row in rows)
    return [Result(name, name in held_back, tuple(row for row in rows if row["case"] == name)) for name in names]
