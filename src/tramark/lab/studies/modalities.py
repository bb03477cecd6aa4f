"""The study `modalities`: pictures, tables and text."""

from collections.abc import Sequence
from dataclasses import dataclass

from tramark.lab.studies.beside import Beside, drop, rate
from tramark.lab.studies.numbers import by
from tramark.lab.studies.study import Case, Glance, Row
from tramark.lab.studies.two_classes import TASKS as TWO_CLASSES
from tramark.lab.studies.two_classes import compared

TASKS = {
    "pictures (Fashion-MNIST)": {"data": "fashion-mnist", "model": "cnn", "samples_per_client": 600},
    "tables (UCI Adult)": TWO_CLASSES["UCI Adult"],
    "text (SST-2)": {"data": "sst2", "model": "text", "samples_per_client": 600, "batch_size": 32, "lr": 0.1},
}


@dataclass(frozen=True)
class Modalities(Beside):
    name: str = "modalities"
    heading: str = "task"

    def cases(self) -> list[Case]:
        return compared(self.scale, TASKS)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        return [
            Glance(f"VR as trained / MA minus FedAvg, {group}", "–", f"{rate(own)} / {drop(own)}")
            for (group,), own in by(rows, "group").items()
        ]
