"""What a study is: named cases, each of which is run with some seeds, and a table and a picture of the results.

A run takes minutes and ends in a row of plain JSON. Everything else (processes, files, going on after a failure or a
kill) is the engine's.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tramark.errors import SettingError

Row = dict[str, Any]
"""The result of a run: plain JSON."""

Say = Callable[[str], None]
"""Shows a few words about how far a run is."""


@dataclass(frozen=True)
class Case:
    """One case of a study.

    Parameters
    ----------
    name : also the name of its files.
    settings : all that its results depend on but the seed, as plain JSON. If they change, old rows are not used.
    sets : names of the data sets that it needs.
    """

    name: str
    settings: Mapping[str, Any]
    sets: tuple[str, ...] = ()


class Study(Protocol):
    """A table or a figure, and the experiments behind it. It must be picklable: runs have processes of their own."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """What it shows, in one line."""

    def cases(self) -> Sequence[Case]:
        """All cases, in the order of the table."""

    def run(self, case: Case, seed: int, folder: Path, data_dir: Path | None, say: Say) -> Row:
        """Run one case. `folder` keeps what later runs can use, such as a warm-up; runs share it."""

    def table(self, rows: Sequence[Row]) -> str:
        """The rows as Markdown."""

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        """Draw the rows, in the format that the path's suffix names; False if matplotlib is missing."""


@dataclass(frozen=True)
class Run:
    """A case with a seed."""

    case: Case
    seed: int

    @property
    def name(self) -> str:
        """The name of its row.

        >>> Run(Case("clothes", {}), 2).name
        'clothes-2'
        """
        return f"{self.case.name}-{self.seed}"

    @property
    def digest(self) -> str:
        """A digest of the case's settings."""
        return hashlib.sha256(json.dumps(self.case.settings, sort_keys=True).encode()).hexdigest()[:16]


def all_runs(cases: Iterable[Case], seeds: int) -> list[Run]:
    """All cases with the first seed, then with the next: a study that is stopped early has a whole table.

    >>> [run.name for run in all_runs([Case("a", {}), Case("b", {})], 2)]
    ['a-0', 'b-0', 'a-1', 'b-1']
    """
    cases = list(cases)
    return [Run(case, seed) for seed in range(seeds) for case in cases]


def named(cases: Iterable[Case], names: Sequence[str]) -> list[Case]:
    """The cases of these names, in the study's order; all if no name is given."""
    cases = list(cases)
    there = [case.name for case in cases]
    if unknown := [name for name in names if name not in there]:
        raise SettingError(f"no case named {', '.join(unknown)}; there are {', '.join(there)}")
    return [case for case in cases if not names or case.name in names]
