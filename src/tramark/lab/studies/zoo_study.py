"""The study `zoo`: what marks cost strangers' federations, and whether they outlive training, all with one default."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tramark.lab.studies import tasks
from tramark.lab.studies.federation import play
from tramark.lab.studies.study import Case, Row, Say
from tramark.lab.studies.zoo import HELD_BACK, ZOO, Federation
from tramark.lab.studies.zoo_picture import draw_zoo
from tramark.lab.studies.zoo_results import results_of
from tramark.lab.studies.zoo_table import zoo_table


@dataclass(frozen=True)
class Zoo:
    """The federations of the zoo, each beside the same one without marks."""

    federations: tuple[Federation, ...] = ZOO
    held_back: frozenset[str] = HELD_BACK
    name: str = "zoo"
    about: str = "Federations over many data sets, nets and optimisers, all with the defaults, beside FedAvg."

    def cases(self) -> list[Case]:
        return [Case(one.name, asdict(one), tasks.sets(one.task)) for one in self.federations]

    def run(self, case: Case, seed: int, folder: Path, data_dir: Path | None, say: Say) -> Row:
        return play(Federation(**case.settings), folder, seed=seed, data_dir=data_dir, on_round=say)

    def table(self, rows: Sequence[Row]) -> str:
        return zoo_table(results_of(rows, self.held_back))

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        return draw_zoo(results_of(rows, self.held_back), path)
