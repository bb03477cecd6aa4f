"""Play one federation of the zoo, beside the same one without marks.

Both have the same warm-up, the same seeds and the same test set. What is measured: accuracy of the issued models beside
FedAvg's, who is named among the models as issued and as their clients have trained them, and what is left of the
answers.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from tramark.fleet.scratch import device_of, evaluating
from tramark.fleet.travels import Travels, frozen_part
from tramark.keys.keyring import Keyring
from tramark.keys.pictures import Patterns
from tramark.keys.sources import Source, Tokens, Vectors
from tramark.lab.data import Dataset
from tramark.lab.methods.fedavg import FedAvg
from tramark.lab.methods.tramark import Traced
from tramark.lab.simulation import partition
from tramark.lab.simulation.client import accuracy
from tramark.lab.simulation.metrics import judge, task_accuracy
from tramark.lab.simulation.simulator import Simulation
from tramark.lab.studies import nets, tasks
from tramark.lab.studies.zoo import Federation
from tramark.marks.begin import begin_after
from tramark.vault.files import replace_file
from tramark.vault.packing import pack, unpack

SETTLED = 3
"""Marked rounds from which on marks must hold."""

KEPT = 3
"""Rounds of warm-up that are played anew from the kept state, so that the server sees updates."""


def play(
    federation: Federation,
    folder: Path,
    *,
    seed: int = 0,
    data_dir: Path | None = None,
    on_round: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Play a federation and return a row of results.

    `folder` keeps its warm-up and FedAvg's accuracy, so that only what depends on marks is played again.
    """
    began = time.perf_counter()
    data = tasks.load(federation.task, data_dir)
    parts = split(federation, data, seed)
    model = nets.build(federation.net, data, seed=seed)
    clients = tuple(f"client-{i:02d}" for i in range(federation.clients))
    say = on_round or (lambda _: None)
    warm, plain = _without_marks(federation, folder, model, data, parts, clients, seed, say)
    keyring = Keyring.generate(
        clients=clients,
        classes=data.classes,
        source=questions_for(data),
        secret=hashlib.sha256(f"zoo {federation.name} {seed}".encode()).digest(),
    )
    server = Traced(model, keyring, rounds=federation.rounds, travels=travels(model))
    server.fleet.load_base(warm["fleet"])
    server.round = int(warm["round"])
    simulation = Simulation(server, data, parts, federation.training, seed=seed)
    rounds: list[dict[str, Any]] = []
    while server.round < federation.rounds:
        was_marked, issued = server.marked, server.measure()
        trained = simulation.train()
        found = _judged(server, trained) if was_marked else {}
        report = server.collect(trained, samples=dict(zip(clients, map(len, parts), strict=True)))
        say(str(report))
        if was_marked:
            rounds.append(
                {
                    "round": report.round,
                    "vr_issued": issued["vr"],
                    "vr_trained": found["vr"],
                    "vr_scores": found["vr_scores"],
                    "left": found["confidence"],
                    **({} if report.made is None else asdict(report.made)),
                }
            )
    ma = mean(task_accuracy(server, data).values())
    base = server.base_model()
    # Where no layer bears marks, or only at the end, nothing settles.
    settled = rounds[SETTLED - 1 :] or [{"vr_issued": 0.0, "vr_trained": 0.0, "vr_scores": 0.0, "left": 0.0}]
    last: Mapping[str, Any] = rounds[-1] if rounds else {"layers": (), "margin": 0.0, "cost": 0.0}
    return {
        "name": federation.name,
        "seed": seed,
        "ma_fedavg": plain,
        "ma_issued": ma,
        "ma_base": accuracy(base, data.test_inputs, data.test_labels, prepare=data.prepare),
        "test_samples": len(data.test_labels),
        "vr_issued": min(one["vr_issued"] for one in settled),
        "vr_trained": min(one["vr_trained"] for one in settled),
        "vr_scores": min(one["vr_scores"] for one in settled),
        "left": mean(one["left"] for one in settled),
        "questions": server.keyring.questions,
        "layer": " ".join(last["layers"]),
        "margin": last["margin"],
        "cost": last["cost"],
        "rounds": rounds,
        "final": server.measure().get("confidence", 0.0),
        "seconds": round(time.perf_counter() - began, 1),
        "settings": asdict(federation),
    }


def travels(model: nn.Module) -> Travels | None:
    """What travels of a net: its trainable part, if the rest is frozen."""
    return "trainable" if frozen_part(model) else None


def warm_up(federation: Federation) -> int:
    """Rounds before the first marks."""
    return begin_after("auto", federation.rounds)


def split(federation: Federation, data: Dataset, seed: int) -> list[Tensor]:
    """Which samples each client has."""
    generator = torch.Generator().manual_seed(seed)
    kind, _, gamma = federation.split.partition(" ")
    if kind == "iid":
        return partition.iid(
            data.train_labels, federation.clients, generator=generator, samples_per_client=federation.samples
        )
    return partition.dirichlet(
        data.train_labels,
        federation.clients,
        gamma=float(gamma),
        generator=generator,
        samples_per_client=federation.samples,
    )


def questions_for(data: Dataset) -> Source:
    """The default source of questions for a data set."""
    if data.kind == "tabular":
        return Vectors(data.input_shape[0])
    if data.kind == "text":
        return Tokens(data.input_shape[0], vocabulary=data.vocabulary)
    channels, height, width = data.input_shape
    return Patterns((channels, height, width), mean=data.mean, std=data.std)


def _without_marks(
    federation: Federation,
    folder: Path,
    model: nn.Module,
    data: Dataset,
    parts: list[Tensor],
    clients: tuple[str, ...],
    seed: int,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], float]:
    """The state some rounds before the end of warm-up, and FedAvg's accuracy at the end."""
    part = travels(model)
    told = json.dumps([asdict(federation), seed, *([part] if part else [])], sort_keys=True).encode()
    path = folder / f"{federation.name}-{seed}-{hashlib.sha256(told).hexdigest()[:8]}.safetensors"
    if path.exists():
        kept = unpack(path.read_bytes())
        return kept, float(kept["ma"])
    server = FedAvg(model, clients, travels=part)
    simulation = Simulation(server, data, parts, federation.training, seed=seed)
    warm: dict[str, Any] = {}
    while server.round < federation.rounds:
        if server.round == max(0, warm_up(federation) - KEPT):
            warm = unpack(pack(server.state_dict()))
        server.collect(simulation.train(), samples=dict(zip(clients, map(len, parts), strict=True)))
        say(f"round {server.round} of {federation.rounds} of FedAvg")
    ma = mean(task_accuracy(server, data).values())
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, pack(warm | {"ma": ma}))
    return warm, ma


def _judged(server: Traced, trained: Mapping[str, dict[str, Tensor]]) -> dict[str, Any]:
    """How well the models are told apart as their clients have trained them."""

    def answers(inputs: Tensor) -> Tensor:
        logits = []
        with evaluating(server.model), torch.no_grad():
            for client in server.fleet.clients:
                own = server.model.state_dict()
                for name, tensor in trained[client].items():
                    own[name].copy_(tensor)
                some = inputs.to(device_of(server.model)).split(500)
                logits.append(torch.cat([server.model(piece).cpu() for piece in some]))
        return torch.stack(logits)

    return judge(server.keyring, server.fleet.clients, answers).to_dict()
