"""The study `warmup`: Fig. 3, marks that begin after a share α of the rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

from tramark.lab.studies import paper
from tramark.lab.studies.numbers import average, column, given, where
from tramark.lab.studies.paper import Score
from tramark.lab.studies.scales import TASKS, case, federation, splits
from tramark.lab.studies.study import Case, Glance, Row, Scale
from tramark.lab.studies.swept import Swept, sweep_data
from tramark.lab.studies.tables import scores

ALPHAS: dict[Scale, dict[str, tuple[float, ...]]] = {
    "smoke": {"iid": (0.0, 0.5)},
    "laptop": {"iid": (0.5, 0.7), "dirichlet": (0.0, 0.5)},
    "paper": {"iid": (0.0, 0.1, 0.3, 0.5, 0.7), "dirichlet": (0.0, 0.1, 0.3, 0.5, 0.7)},
}


@dataclass(frozen=True)
class Warmup(Swept):
    name: str = "warmup"
    label: str = "alpha"
    across: str = "share of rounds without marks, α"

    def cases(self) -> list[Case]:
        cases = []
        for data in sweep_data(self.scale):
            rounds = TASKS[self.scale][data]["rounds"]
            for split in splits(self.scale):
                cases += [
                    case(
                        f"{data}-{split}-released-{alpha}",
                        federation(data, self.scale, "released", split=split, warmup=round(alpha * rounds)),
                        data=data,
                        split=split,
                        variant="released",
                        alpha=alpha,
                    )
                    for alpha in ALPHAS[self.scale][split]
                ]
                beside = {"fedavg": None, "ours": 0.5}
                cases += [
                    case(
                        f"{data}-{split}-{variant}",
                        federation(data, self.scale, variant, split=split),
                        data=data,
                        split=split,
                        variant=variant,
                        alpha=alpha,
                    )
                    for variant, alpha in beside.items()
                ]
        return cases

    def table(self, rows: Sequence[Row]) -> str:
        def theirs(key: tuple[str, ...]) -> Score | None:
            _, split, variant, alpha = key
            if split != "dirichlet" or variant == "ours":
                return None
            return paper.WARMUP.get("fedavg" if variant == "fedavg" else float(alpha))

        labels = {"data": "data", "split": "split", "method": "variant", "α": "alpha"}
        return (
            f"{scores(rows, labels, theirs)} The paper's numbers are means over its four data sets, of which the text "
            f"gives those of the Dirichlet split alone; of VR it says: {paper.WARMUP_SAID}."
        )

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        released = where(rows, variant="released")

        def vr(alpha: float) -> str:
            return given(average(column(where(released, alpha=alpha), "vr"), 100))

        return [
            Glance("VR at α = 0.5, TraMark, released", "satisfactory", vr(0.5)),
            Glance("VR at α = 0.7, TraMark, released", "degraded", vr(0.7)),
        ]
