"""All studies, by name: each is made for a scale."""

from collections.abc import Callable

from tramark.lab.studies.main import Main
from tramark.lab.studies.study import Scale, Study
from tramark.lab.studies.zoo_study import zoo_at

STUDIES: dict[str, Callable[[Scale], Study]] = {
    "main": Main,
    "zoo": zoo_at,
}
