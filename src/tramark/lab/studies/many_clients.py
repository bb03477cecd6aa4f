"""The study `many-clients`: more and more clients on ten labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tramark.lab.studies.beside import Beside, drop, rate
from tramark.lab.studies.scales import case, federation
from tramark.lab.studies.study import Case, Glance, Row

COUNTS = {"smoke": (3, 12), "laptop": (10, 40, 100), "paper": (10, 50, 100, 500)}
SAMPLES = {"smoke": 480, "laptop": 6000, "paper": 60_000}
"""Samples of all clients together."""


@dataclass(frozen=True)
class ManyClients(Beside):
    name: str = "many-clients"
    heading: str = "clients"

    def cases(self) -> list[Case]:
        changes: dict[str, Any] = {}
        if self.scale == "laptop":
            changes = {"rounds": 24, "warmup": 12, "local_epochs": 2, "batch_size": 20}
        return [
            case(
                f"{count}-{variant}",
                federation(
                    "fashion-mnist",
                    self.scale,
                    variant,
                    clients=count,
                    samples_per_client=SAMPLES[self.scale] // count,
                    **changes,
                ),
                group=str(count),
                variant=variant,
            )
            for count in COUNTS[self.scale]
            for variant in ("fedavg", "ours")
        ]

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        most = max(int(row["settings"]["group"]) for row in rows)
        own = [row for row in rows if row["settings"]["group"] == str(most)]
        return [
            Glance(f"VR as trained, {most} clients on ten labels", "–", rate(own)),
            Glance(f"MA minus FedAvg, {most} clients", "–", drop(own)),
        ]
