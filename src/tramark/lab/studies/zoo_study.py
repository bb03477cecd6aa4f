"""The study `zoo`: what marks cost strangers' federations, and whether they outlive training, all with one default."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from tramark.lab.studies import tasks
from tramark.lab.studies.contents import CONTENTS
from tramark.lab.studies.federation import play
from tramark.lab.studies.study import Bench, Case, Glance, Row, Scale
from tramark.lab.studies.zoo import HELD_BACK, ZOO, Federation
from tramark.lab.studies.zoo_picture import draw_zoo
from tramark.lab.studies.zoo_results import results_of
from tramark.lab.studies.zoo_table import zoo_table

MINUTES = 2.5
"""What a federation takes on two cores, in the mean."""


@dataclass(frozen=True)
class Zoo:
    """The federations of the zoo, each beside the same one without marks."""

    federations: tuple[Federation, ...] = ZOO
    held_back: frozenset[str] = HELD_BACK
    name: str = "zoo"
    about: str = CONTENTS["zoo"].about

    def cases(self) -> list[Case]:
        return [Case(one.name, asdict(one), tasks.sets(one.task), minutes=_minutes(one)) for one in self.federations]

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        return play(Federation(**case.settings), bench.work, seed=seed, data_dir=bench.data_dir, on_round=bench.say)

    def table(self, rows: Sequence[Row]) -> str:
        return zoo_table(results_of(rows, self.held_back))

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        return draw_zoo(results_of(rows, self.held_back), path)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        found = results_of(rows, self.held_back)
        met = sum(one.meets_all for one in found)
        return [
            Glance("federations that meet all targets", "–", f"{met} of {len(found)}"),
            Glance("the same, with scores", "–", f"{sum(one.meets_with_scores for one in found)} of {len(found)}"),
            Glance("MA minus FedAvg", "–", f"{mean(one.difference for one in found):+.2f}"),
        ]


def _minutes(federation: Federation) -> float:
    """What a federation takes on two cores, estimated."""
    return 0.1 if federation in SMALL else MINUTES


SMALL = (
    Federation("digits-mlp", "digits", "mlp", 2, 150, "sgd", 0.05, 6),
    Federation("digits-adam", "digits", "mlp", 2, 150, "adam", 1e-3, 6),
)
"""What is run at scale `smoke`."""


def zoo_at(scale: Scale) -> Zoo:
    """The zoo at a scale; it is the same for `laptop` and `paper`."""
    return Zoo(SMALL, frozenset()) if scale == "smoke" else Zoo()
