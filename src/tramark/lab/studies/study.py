"""What a study is: named cases, each of which is run with some seeds, and a table and a picture of the results.

A run takes minutes and ends in a row of plain JSON. Everything else (processes, files, going on after a failure or a
kill) is the engine's. A study has a scale: `smoke` takes seconds and shows only that it works, `laptop` is for two
cores, and `paper` has the paper's settings, for a GPU.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from tramark.errors import SettingError

Row = dict[str, Any]
"""The result of a run: plain JSON."""

Say = Callable[[str], None]
"""Shows a few words about how far a run is."""


Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")


def digest(settings: Mapping[str, Any]) -> str:
    """A short digest of settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Part:
    """What several cases use, also those of other studies, such as a finished federation. It is made once.

    Parameters
    ----------
    settings : all that it depends on but the seed, as plain JSON; for a federation, those of `tramark run`.
    minutes : how long it takes on two cores, estimated.
    begins_as : settings of another one whose first rounds are the same, and are taken over if it has been made.
    """

    settings: Mapping[str, Any]
    minutes: float = 0.0
    begins_as: Mapping[str, Any] | None = None

    def folder(self, work: Path, seed: int) -> Path:
        """Where it is kept: a folder named by the digest of its settings, with `summary.json` once it is finished."""
        return work / f"run-{digest({**self.settings, 'seed': seed})}"

    def done(self, work: Path, seed: int) -> bool:
        return (self.folder(work, seed) / "summary.json").exists()


@dataclass(frozen=True)
class Case:
    """One case of a study.

    Parameters
    ----------
    name : also the name of its files.
    settings : all that its results depend on but the seed, as plain JSON. If they change, old rows are not used.
    sets : names of the data sets that it needs.
    parts : the federations that it uses.
    minutes : how long it takes on two cores besides its parts, estimated.
    """

    name: str
    settings: Mapping[str, Any]
    sets: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    minutes: float = 0.0


@dataclass(frozen=True)
class Bench:
    """What a run works with.

    Parameters
    ----------
    work : the folder of what other runs can use, such as finished federations.
    data_dir : the user's folder of data sets.
    say : shows a few words about how far the run is.
    device : the name of the device to compute on.
    """

    work: Path
    data_dir: Path | None = None
    say: Say = lambda _: None
    device: str = "cpu"


@dataclass(frozen=True)
class Glance:
    """One line of the comparison with the paper: what is compared, the paper's value, and ours."""

    what: str
    paper: str
    ours: str


class Study(Protocol):
    """A table or a figure, and the experiments behind it. It must be picklable: runs have processes of their own."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """What it shows, in one line."""

    def cases(self) -> Sequence[Case]:
        """All cases, in the order of the table."""

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        """Run one case."""

    def table(self, rows: Sequence[Row]) -> str:
        """The rows as Markdown."""

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        """Draw the rows, in the format that the path's suffix names; False if matplotlib is missing."""

    def glance(self, rows: Sequence[Row]) -> Sequence[Glance]:
        """The few numbers that the index of all studies shows beside the paper's."""


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
        return digest(self.case.settings)

    def unfinished(self, work: Path) -> set[Path]:
        """The folders of the federations that it uses and that are not finished yet."""
        return {part.folder(work, self.seed) for part in self._missing(work)}

    def waits_for(self, work: Path) -> set[Path]:
        """Folders that it would rather have finished before it starts, if somebody is at them."""
        others = [Part(part.begins_as) for part in self._missing(work) if part.begins_as is not None]
        return self.unfinished(work) | {one.folder(work, self.seed) for one in others if not one.done(work, self.seed)}

    def _missing(self, work: Path) -> list[Part]:
        return [part for part in self.case.parts if not part.done(work, self.seed)]


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


def minutes_of(runs: Iterable[Run], work: Path | None = None) -> float:
    """How long runs take on two cores, estimated. A federation counts once, and not at all if `work` has it.

    >>> pair = Part({"rounds": 2}, minutes=5)
    >>> minutes_of(all_runs([Case("a", {}, parts=(pair,)), Case("b", {}, parts=(pair,), minutes=1)], 2))
    12.0
    """
    total, parts = 0.0, {}
    for run in runs:
        total += run.case.minutes
        for part in run.case.parts:
            if work is None or not part.done(work, run.seed):
                parts[part.folder(Path(), run.seed)] = part.minutes
    return total + sum(parts.values())
