"""All studies, by name."""

from tramark.lab.studies.study import Study
from tramark.lab.studies.zoo_study import Zoo

STUDIES: dict[str, Study] = {study.name: study for study in (Zoo(),)}
