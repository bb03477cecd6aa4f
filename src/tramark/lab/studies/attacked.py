"""The base of studies in which clients attack their models, and what their tables share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tramark.lab.attacks.arena import title
from tramark.lab.studies.numbers import NONE, average
from tramark.lab.studies.parts import attacked
from tramark.lab.studies.played import Scaled
from tramark.lab.studies.scales import case, federation, settings_of
from tramark.lab.studies.study import Bench, Case, Row

Assaults = Sequence[tuple[str, dict[str, Any]]]

MODELS = {"issued": "as issued", "trained": "as trained"}


@dataclass(frozen=True)
class Attacked(Scaled):
    """A study of attacks on the models of finished federations; those of `main` are used."""

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        asked = case.settings
        found = attacked(
            settings_of(case, seed),
            bench,
            [(name, dict(parameters)) for name, parameters in asked["attacks"]],
            which=asked["which"],
            thieves=asked["thieves"],
            samples=asked["samples"],
        )
        return {"attacks": found}


def attack_case(
    study: Scaled,
    data: str,
    variant: str,
    which: str,
    attacks: Assaults,
    *,
    thieves: int | None = None,
    samples: int | None = 2000,
    minutes: float = 1.0,
    changes: Mapping[str, Any] | None = None,
    **labels: Any,
) -> Case:
    """Attacks on the models of one federation. `thieves` is how many clients attack, all by default."""
    name = "-".join([data, variant, which, *map(str, labels.values())])
    return case(
        name,
        federation(data, study.scale, variant, **changes or {}),
        minutes=0.1 if study.scale == "smoke" else minutes,
        data=data,
        variant=variant,
        which=which,
        attacks=[[one, parameters] for one, parameters in attacks],
        thieves=thieves,
        samples=samples,
        **labels,
    )


def results(rows: Sequence[Row]) -> list[Row]:
    """The result of every attack in the rows, with the labels and the seed of its row."""
    return [
        {
            **one,
            "settings": row["settings"],
            "seed": row["seed"],
            "attack": title(one["name"], one["parameters"]),
        }
        for row in rows
        for one in row["attacks"]
    ]


def cell(found: Sequence[Row], name: str, digits: int = 1) -> str:
    """A number in percent, in the mean over data sets and seeds; † if most of the models are ruined."""
    value = average([one.get(name) for one in found], 100)
    if value is None:
        return NONE
    dead = sum(bool(one.get("dead")) for one in found) > len(found) / 2
    return f"{value:.{digits}f}" + (" †" if dead and name == "ma" else "")
