"""What the server of each method does in a round, timed and weighed: the base of `cost`, `full-cost`, `communication`.

Clients train for an instant on a few samples, so that their updates are real; their time is left out. Timed are rounds
after the first marks. Each run has one thread, so run one at a time for times that mean something.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tramark.lab.simulation.run import Settings, prepare
from tramark.lab.studies.parts import kept
from tramark.lab.studies.played import Scaled
from tramark.lab.studies.scales import TASKS, VARIANTS, plain_settings, sets_of, without_pictures
from tramark.lab.studies.study import Bench, Case, Part, Row

EVERY = {**VARIANTS, **{name: {"method": name} for name in ("fedipr", "robwe", "fedcrmw", "blackcatt")}}
"""The methods that mark the federation's own model, those of Table 1 first."""

REPEATS = 3


@dataclass(frozen=True)
class Served(Scaled):
    """A study of servers on CIFAR-10's model of the paper, which is AlexNet also at scale `laptop`."""

    def cases(self) -> list[Case]:
        cases = []
        for variant in EVERY:
            settings = self._settings(variant)
            plain = plain_settings(settings)
            part = Part({"server": variant, **plain}, 0.1 if self.scale == "smoke" else 3.0)
            labels = {"variant": variant, "repeats": REPEATS, "federation": plain}
            cases.append(Case(variant, labels, sets=sets_of(settings), parts=(part,)))
        return cases

    def _settings(self, variant: str) -> Settings:
        smoke = self.scale == "smoke"
        task = {"data": "cifar-10"} | TASKS["smoke" if smoke else "paper"]["cifar-10"] | EVERY[variant]
        few = {"samples_per_client": 64, "local_epochs": 1, "rounds": 10, "warmup": 1}
        return Settings(**(without_pictures(task) if smoke else task) | few)

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        (part,) = case.parts
        return kept(
            part.folder(bench.work, seed) / "summary.json",
            lambda: _measured(Settings(**case.settings["federation"], seed=seed), bench),
        )


def _measured(settings: Settings, bench: Bench) -> Row:
    """Seconds of collecting a round and of verifying all models, and bytes sent and received, the medians."""
    device = torch.device(bench.device)
    with prepare(settings, data_dir=bench.data_dir, device=device) as simulation:
        method = simulation.method
        collect, verify = [], []
        for number in range(1 + REPEATS):
            bench.say(f"round {number + 1} of {1 + REPEATS}")
            returned = simulation.train()
            seconds = _timed(lambda models=returned: method.collect(models), device)  # type: ignore[misc]
            if number:
                collect.append(seconds)
        for _ in range(REPEATS):
            bench.say("verifies")
            verify.append(_timed(method.measure, device))
        outgoing = method.dispatch()
        sizes = [sum(tensor.nbytes for tensor in outgoing[client].values()) for client in outgoing]
        returning = [sum(tensor.nbytes for tensor in state.values()) for state in returned.values()]
        first = next(iter(outgoing))
        base = {name: tensor.clone() for name, tensor in outgoing[first].items()}
        alike = all(
            all(torch.equal(base[name], tensor) for name, tensor in outgoing[client].items()) for client in outgoing
        )
        return {
            "clients": len(sizes),
            "model_bytes": sizes[0],
            "down_bytes": sum(sizes),
            "up_bytes": sum(returning),
            "distinct": 1 if alike else len(sizes),
            "seconds_collect": round(statistics.median(collect), 4),
            "seconds_verify": round(statistics.median(verify), 4) if method.marked else 0.0,
        }


def _timed(call: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
