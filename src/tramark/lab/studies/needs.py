"""Say which data sets cannot be had, before anything is run."""

from collections.abc import Iterable
from pathlib import Path

from tramark.errors import DataError
from tramark.lab import data
from tramark.lab.studies.study import Case


def missing_sets(cases: Iterable[Case], data_dir: Path | None) -> dict[str, str]:
    """The data sets that some case needs and that cannot be had, and why. Those that can be fetched are fetched."""
    missing = {}
    for name in dict.fromkeys(name for case in cases for name in case.sets):
        try:
            data.find(name, data_dir=data_dir)
        except DataError as error:
            missing[name] = str(error)
    return missing
