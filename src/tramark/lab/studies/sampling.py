"""The study `sampling`: fifty clients, all of which or a fifth take part in a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tramark.lab.studies import paper
from tramark.lab.studies.beside import Beside, rate
from tramark.lab.studies.numbers import given, where
from tramark.lab.studies.scales import case, federation
from tramark.lab.studies.study import Case, Glance, Row, Scale
from tramark.lab.studies.tables import scores

SIZES: dict[Scale, dict[str, Any]] = {
    "smoke": {"clients": 5, "samples_per_client": 60},
    "laptop": {"clients": 50, "samples_per_client": 100},
    "paper": {"clients": 50},
}
FRACTIONS = {"all": 1.0, "20 %": 0.2}


@dataclass(frozen=True)
class Sampling(Beside):
    name: str = "sampling"

    def cases(self) -> list[Case]:
        return [
            case(
                f"{group.replace(' %', '-percent')}-{variant}",
                federation(
                    "tiny-imagenet",
                    self.scale,
                    variant,
                    sample_fraction=fraction,
                    **SIZES[self.scale],
                    **({"triggers": "waffle"} if variant == "released" else {}),
                ),
                group=group,
                variant=variant,
            )
            for group, fraction in FRACTIONS.items()
            for variant in ("released", "ours")
        ]

    def table(self, rows: Sequence[Row]) -> str:
        labels = {"clients a round": "group", "method": "variant"}
        return scores(rows, labels, lambda key: paper.SAMPLING[key[0]])

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        theirs = given(paper.SAMPLING["20 %"].vr)
        own = where(rows, group="20 %")
        return [
            Glance("VR, 20 % of 50 clients a round, TraMark, released", theirs, rate(own, "released", "vr")),
            Glance("VR, 20 % of 50 clients a round, TraMark, ours", theirs, rate(own, "ours", "vr")),
        ]
