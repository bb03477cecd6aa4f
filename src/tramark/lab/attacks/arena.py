"""The arena: a finished run's clients leak their models, attacks are made on them, and the method says whose they are.

A thief has the model that it trained last (or, if asked for, the one it was sent), its own part of the data and, in a
collusion, its friends' models. A verdict is *right* if it names the thief (colluders: at least one of them, and nobody
else), *wrong* if it names anybody innocent, else *nobody* or *inconclusive*. A method that names no clients is right
if it claims the model for the federation. An attack after which the model has lost more than 15 points of its
accuracy has left nothing worth protecting, and is marked *dead*.
"""

import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file
from torch import nn

from tramark.errors import SettingError, SuspectError
from tramark.lab.attacks import ATTACKS
from tramark.lab.attacks.base import Attack, Collusion, Loot
from tramark.lab.methods import Finding, Verifiable
from tramark.lab.simulation.run import Settings, reopen
from tramark.lab.simulation.simulator import Simulation
from tramark.suspects.base import Suspect
from tramark.suspects.module import ModuleSuspect

DEAD = 0.15
"""A model that lost more accuracy than this has nothing to protect."""


RESULTS = "attacks.jsonl"


Which = Literal["trained", "issued"]


MATRIX: tuple[tuple[str, dict[str, Any]], ...] = (
    ("prune", {"share": 0.5}),
    ("prune", {"share": 0.9}),
    ("prune-structured", {"share": 0.3}),
    ("fine-tune", {"epochs": 5, "lr": 0.01}),
    ("fine-tune-last", {}),
    ("retrain", {}),
    ("cast", {}),
    ("int8", {}),
    ("few-bits", {"bits": 4}),
    ("rnp", {"threshold": 0.2}),
    ("fine-prune", {"epochs": 5}),
    ("weight-noise", {"scale": 0.3}),
    ("weight-shift", {"epochs": 5}),
    ("regularise", {}),
    ("label-smoothing", {}),
    ("adversarial-training", {"epochs": 2}),
    ("overwrite", {}),
    ("distil", {"epochs": 20}),
    ("extract", {"epochs": 20}),
    ("permute-units", {}),
    ("rescale-units", {}),
    ("onnx", {}),
    ("wrk", {}),
    ("reverse-edit", {"rank": 16}),
    ("reverse-edit", {"rank": 16, "end": "top"}),
    ("clp", {}),
    ("nad", {"epochs": 5, "tuning_epochs": 5}),
    ("i-bau", {}),
    ("jpeg", {"strength": 65}),
    ("blur", {}),
    ("median", {}),
    ("input-noise", {}),
    ("bit-depth", {}),
    ("flip", {}),
    ("randomise", {"share": 0.2}),
    ("hide-classes", {}),
    ("refuse", {}),
    ("average", {"colluders": 2}),
    ("average", {"colluders": 5}),
    ("mix-tensors", {"colluders": 3}),
    ("mix-weights", {"colluders": 3}),
    ("extreme", {"colluders": 3}),
    ("difference", {"action": "zero"}),
    ("difference", {"action": "redraw", "epochs": 2}),
    ("difference-directions", {"directions": 64}),
    ("project-inputs", {"energy": 0.99}),
    ("project-inputs", {"energy": 0.999}),
    ("retrain-layer", {"epochs": 5, "whole": True}),
    ("quiet-weights", {"share": 0.05, "criterion": "large"}),
    ("anti-patterns", {"epochs": 5}),
    ("guess-questions", {"guesses": 128}),
    ("prune-and-tune", {"share": 0.5}),
)
"""What `--all` runs: every family, at parameters that a patient thief would take."""


@dataclass(frozen=True, eq=False)
class Stage:
    """A finished run, ready to be attacked."""

    settings: Settings
    simulation: Simulation
    leaked: dict[str, Path]
    which: Which
    _before: dict[tuple[str, int | None], float] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, folder: Path, which: Which = "trained", **options: Any) -> "Stage":
        """Open a run's folder; `options` are those of `reopen`."""
        settings, simulation = reopen(folder, **options)
        place = folder / {"trained": "trained", "issued": "models"}[which]
        leaked = {client: place / f"{client}.safetensors" for client in simulation.method.fleet.clients}
        leaked = {client: path for client, path in leaked.items() if path.exists()}
        if not leaked:
            raise SettingError(f"no models in {place}: has the run ended?")
        return cls(settings, simulation, leaked, which)

    def model(self, client: str) -> nn.Module:
        """The model that a client leaks."""
        model = copy.deepcopy(self.simulation.method.model)
        model.load_state_dict(load_file(self.leaked[client]))
        return model.eval()

    def loot(self, client: str) -> Loot:
        """What it has besides."""
        number = self.simulation.method.fleet.clients.index(client)
        return Loot(self.simulation.dataset, self.simulation.parts[number])

    def before(self, client: str, samples: int | None) -> float:
        """How well a client's model does its task as it is; measured once for all attacks."""
        if (client, samples) not in self._before:
            self._before[client, samples] = self.accuracy(self.model(client), samples)
        return self._before[client, samples]

    def accuracy(self, suspect: nn.Module | Suspect, samples: int | None) -> float:
        """How well what turned up does its task; an answer withheld is a wrong one."""
        data = self.simulation.dataset
        if isinstance(suspect, nn.Module):
            suspect = ModuleSuspect(suspect, data.prepare, batch=1000)
        labels = suspect.ask(data.test_inputs[:samples]).labels
        return float((labels == data.test_labels[:samples]).double().mean())


def groups(attack: Attack | Collusion, clients: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The thieves of each assault: every client alone or, in a collusion, with those who come next."""
    size = attack.colluders if isinstance(attack, Collusion) else 1
    if size > len(clients):
        raise SettingError(f"{attack} takes {size} colluders, but there are {len(clients)} clients")
    for first in range(len(clients)):
        yield tuple(islice((clients[(first + i) % len(clients)] for i in range(size)), size))


def assault(
    stage: Stage,
    attack: Attack | Collusion,
    thieves: Sequence[tuple[str, ...]],
    *,
    samples: int | None = 2000,
    progress: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Make an attack by each group of thieves, and see what the method says of what turns up."""
    method = stage.simulation.method
    began = time.perf_counter()
    before, after, confidences, queries = [], [], [], []
    verdicts = {"right": 0, "wrong": 0, "nobody": 0, "inconclusive": 0}
    problem = ""
    for group in thieves:
        models = [stage.model(client) for client in group]
        try:
            turned_up = (
                attack.collude(models, stage.loot(group[0]))
                if isinstance(attack, Collusion)
                else attack(models[0], stage.loot(group[0]))
            )
        except SettingError as error:
            problem = str(error)
            break
        before.append(statistics.mean(stage.before(client, samples) for client in group))
        after.append(stage.accuracy(turned_up, samples))
        if isinstance(method, Verifiable):
            if method.declared.access == "white-box" and not isinstance(turned_up, nn.Module):
                problem = "the method must see the weights, and what turns up only answers"
                break
            finding, own = _verify(method, turned_up, group)
            verdicts[_verdict(finding, group, method.declared.names_clients)] += 1
            confidences.append(own)
            queries.append(finding.queries)
        if progress is not None:
            progress()
    if problem:
        return {"attack": repr(attack), "method": stage.settings.method, "not_applicable": problem}
    row = {
        "attack": repr(attack),
        "method": stage.settings.method,
        "thieves": [list(group) for group in thieves],
        "which": stage.which,
        "ma_before": statistics.mean(before),
        "ma": statistics.mean(after),
        "dead": statistics.mean(before) - statistics.mean(after) > DEAD,
        "seconds": round(time.perf_counter() - began, 1),
    }
    if not confidences:
        return row
    return row | {
        "vr": verdicts["right"] / len(thieves),
        "confidence": statistics.mean(confidences),
        "verdicts": verdicts,
        "queries": statistics.median(queries),
    }


def _verify(method: Verifiable, suspect: nn.Module | Suspect, group: tuple[str, ...]) -> tuple[Finding, float]:
    try:
        return method.verify(suspect), max(method.confidence(suspect, client) for client in group)
    except SuspectError:
        # Weights of another shape or kind than the method's own: it can tell nothing.
        if method.declared.access == "black-box":
            raise
        return Finding((), {}, conclusive=False), 0.0


def _verdict(finding: Finding, group: tuple[str, ...], names_clients: bool) -> str:
    if not names_clients:
        return "right" if finding.owned else "nobody"
    if set(finding.accused) - set(group):
        return "wrong"
    if finding.accused:
        return "right"
    return "nobody" if finding.conclusive else "inconclusive"


def title(name: str, parameters: dict[str, Any]) -> str:
    """An attack as it is asked for; its `repr` says all.

    >>> title("fine-tune", {"epochs": 5, "lr": 0.01})
    'fine-tune epochs=5 lr=0.01'
    """
    return " ".join([name, *(f"{key}={value}" for key, value in parameters.items())])


def make(name: str, parameters: dict[str, Any]) -> Attack | Collusion:
    """The attack of this name."""
    if name not in ATTACKS:
        raise SettingError(f"no attack {name!r}: there are {', '.join(ATTACKS)}")
    try:
        return ATTACKS[name](**parameters)
    except TypeError as error:
        raise SettingError(f"{name}: {error}") from None


class Ledger:
    """The assaults that were made on a run, a line each in its folder, so that none is made twice."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / RESULTS
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        return next((row for row in self.rows if row["key"] == key), None)

    def add(self, key: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        row = row | {"key": key}
        self.rows.append(row)
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row
