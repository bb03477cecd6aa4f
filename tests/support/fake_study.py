"""A study whose runs take no time: for tests of the engine. Runs are in processes of their own, which import this."""

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.errors import SettingError
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.study import Bench, Case, Glance, Row, Run


@dataclass(frozen=True)
class Squares:
    """Squares numbers. A negative one fails, 13 kills its process, 404 never ends. Each run leaves a file."""

    numbers: tuple[tuple[str, int], ...]
    sets: tuple[str, ...] = ()
    name: str = "squares"
    about: str = "Numbers and their squares."

    def cases(self) -> list[Case]:
        return [Case(name, {"number": number, "list": (1, 2)}, self.sets) for name, number in self.numbers]

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        number = case.settings["number"]
        bench.work.mkdir(parents=True, exist_ok=True)
        with (bench.work / f"{case.name}-{seed}").open("a") as file:
            file.write("x")
        bench.say(f"round 1 of {number}")
        if number < 0:
            raise SettingError(f"{number} is negative")
        if number == 13:
            os._exit(7)
        if number == 404:
            (bench.work.parent / "pid").write_text(str(os.getpid()))
            time.sleep(600)
        if number == 5:
            warnings.warn("five is odd", stacklevel=1)
        return {"square": number**2 + seed, "threads": os.environ["OMP_NUM_THREADS"]}

    def table(self, rows: Sequence[Row]) -> str:
        return markdown_table(["case", "square"], [[row["case"], str(row["square"])] for row in rows])

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        path.write_text(" ".join(str(row["square"]) for row in rows))
        return True

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        return [Glance("the largest", "–", str(max(row["square"] for row in rows)))]


class Notes:
    """A watcher that writes down what it sees."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.done: list[str] = []

    def says(self, run: Run, words: str) -> None:
        self.said.append((run.name, words))

    def ended(self, run: Run, row: Row) -> None:
        self.done.append(run.name)


if __name__ == "__main__":
    # What a test starts to kill it: `python fake_study.py OUT`.
    import sys

    from fake_study import Notes as Seen
    from fake_study import Squares as Fake

    from tramark.lab.studies.book import Book
    from tramark.lab.studies.engine import conduct
    from tramark.lab.studies.study import all_runs

    hanging = Fake((("a", 2), ("b", 404), ("c", 4)))
    conduct(Book(hanging, Path(sys.argv[1])), all_runs(hanging.cases(), 1), workers=1, data_dir=None, watcher=Seen())
