"""Small zoos for tests of the command line. Runs are in processes of their own, which import this."""

from tramark.lab.studies.study import Bench, Case, Row
from tramark.lab.studies.zoo import Federation
from tramark.lab.studies.zoo_study import Zoo

SMALL = (
    Federation("pair", "digits", "mlp", 2, 150, "sgd", 0.05, 6),
    Federation("hidden", "digits", "mlp", 2, 150, "sgd", 0.1, 6),
    Federation("houses", "svhn", "small-cnn", 2, 150, "sgd", 0.05, 6),
)


class SmallZoo(Zoo):
    """Three federations, of which one is held back and one lacks its data."""

    def __init__(self) -> None:
        super().__init__(SMALL, frozenset({"hidden"}))


class BrokenZoo(SmallZoo):
    """The same, and none of them can be run."""

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        raise RuntimeError("no luck")
