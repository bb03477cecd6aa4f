"""The base of studies whose cases are federations: each gives what came of one."""

from dataclasses import dataclass

from tramark.lab.studies.contents import CONTENTS
from tramark.lab.studies.parts import outcome
from tramark.lab.studies.scales import settings_of
from tramark.lab.studies.study import Bench, Case, Row, Scale


@dataclass(frozen=True)
class Scaled:
    """A study at a scale."""

    scale: Scale = "laptop"
    name: str = ""

    @property
    def about(self) -> str:
        return CONTENTS[self.name].about


@dataclass(frozen=True)
class Played(Scaled):
    """A study of federations; `cases` says which."""

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        row = outcome(settings_of(case, seed), bench)
        return {name: value for name, value in row.items() if name != "curve"}
