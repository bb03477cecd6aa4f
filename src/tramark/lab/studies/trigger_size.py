"""The study `trigger-size`: Fig. 4 right, the number of triggers a client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tramark.lab.studies import paper
from tramark.lab.studies.numbers import average, column, given, where
from tramark.lab.studies.scales import case, federation
from tramark.lab.studies.study import Case, Glance, Row
from tramark.lab.studies.swept import Swept, sweep_data

SIZES = (50, 100, 150, 200)


@dataclass(frozen=True)
class TriggerSize(Swept):
    name: str = "trigger-size"
    label: str = "triggers"
    across: str = "triggers a client"
    theirs = paper.TRIGGER_SIZE

    def cases(self) -> list[Case]:
        sizes = {"smoke": (100,), "laptop": (50, 100), "paper": SIZES}[self.scale]
        cases = []
        for data in sweep_data(self.scale):
            for count in sizes:
                # A hundred is the default: so the federation is that of `main`.
                changes: dict[str, Any] = {} if count == 100 else {"options": {"trigger_count": count}}
                settings = federation(data, self.scale, "released", **changes)
                cases.append(case(f"{data}-released-{count}", settings, data=data, variant="released", triggers=count))
        return cases

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        return [
            Glance(
                f"VR with {count} triggers, TraMark, released",
                given(paper.TRIGGER_SIZE[count].vr),
                given(average(column(where(rows, triggers=count), "vr"), 100)),
            )
            for count in (50, 100)
        ]
