"""The study `two-classes`: tasks with two labels."""

from collections.abc import Sequence
from dataclasses import dataclass

from tramark.lab.simulation.run import Settings
from tramark.lab.studies.beside import Beside, drop, rate
from tramark.lab.studies.scales import VARIANTS, case, federation
from tramark.lab.studies.study import Case, Glance, Row, Scale

TASKS = {
    "PneumoniaMNIST": {"data": "pneumonia-mnist", "model": "cnn", "samples_per_client": 400, "batch_size": 32},
    "UCI Adult": {"data": "adult", "model": "mlp", "samples_per_client": 1000, "batch_size": 64},
}


@dataclass(frozen=True)
class TwoClasses(Beside):
    name: str = "two-classes"
    heading: str = "data"

    def cases(self) -> list[Case]:
        return compared(self.scale, TASKS)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        return [
            Glance("VR as trained, ten clients on two labels", "at most two clients", rate(rows)),
            Glance("MA minus FedAvg, two labels", "–", drop(rows)),
        ]


def compared(scale: Scale, tasks: dict[str, dict[str, object]]) -> list[Case]:
    """FedAvg and ours on tasks of small nets, which have one size at `laptop` and at `paper`."""
    cases = []
    for group, task in tasks.items():
        for variant in ("fedavg", "ours"):
            shared = {"rounds": 24, "warmup": 12, "local_epochs": 2}
            settings = Settings(**shared | task | VARIANTS[variant])  # type: ignore[arg-type]
            if scale == "smoke":
                settings = federation("fashion-mnist", "smoke", variant)
            name = f"{group.lower().replace(' ', '-')}-{variant}"
            cases.append(case(name, settings, group=group, variant=variant))
        if scale == "smoke":
            break
    return cases
