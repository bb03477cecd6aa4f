"""The study `extension`: twenty clients on ten labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tramark.lab.studies import paper
from tramark.lab.studies.beside import Beside, drop, rate
from tramark.lab.studies.scales import case, federation
from tramark.lab.studies.study import Case, Glance, Row, Scale

SIZES: dict[Scale, dict[str, Any]] = {
    "smoke": {"clients": 11, "samples_per_client": 40},
    "laptop": {"clients": 20, "samples_per_client": 250},
    "paper": {"clients": 20},
}


@dataclass(frozen=True)
class Extension(Beside):
    name: str = "extension"

    def cases(self) -> list[Case]:
        sizes = SIZES[self.scale]
        group = f"CIFAR-10, {sizes['clients']} clients"
        triggers = {"released": {"triggers": "waffle"}}
        return [
            case(
                variant,
                federation("cifar-10", self.scale, variant, **sizes, **triggers.get(variant, {})),
                group=group,
                variant=variant,
            )
            for variant in ("fedavg", "released", "ours")
        ]

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        theirs = f"{paper.EXTENSION_DROP:+.2f}"
        return [
            Glance("MA minus FedAvg, head extended, TraMark, released", theirs, drop(rows, "released")),
            Glance("VR, head extended, TraMark, released", "100.00", rate(rows, "released", "vr")),
            Glance("MA minus FedAvg, head as it is, TraMark, ours", theirs, drop(rows)),
            Glance("VR, head as it is, TraMark, ours", "100.00", rate(rows, "ours", "vr")),
        ]
