"""The study `large`: the server's round for a hundred clients of a ViT-B/16, at full size.

Clients return what they were sent, moved a little in a few random directions; models are issued, and updates arrive,
one by one. Weights are random: the pretrained ones that the paper fine-tunes cannot be assumed to be at hand.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from tramark.fleet.scratch import loaded
from tramark.keys.keyring import Keyring
from tramark.lab import models
from tramark.lab.methods.tramark import Traced
from tramark.lab.studies import paper, plots
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import by, number, percent
from tramark.lab.studies.played import Scaled
from tramark.lab.studies.study import Bench, Case, Glance, Row
from tramark.marks.closed_form import ClosedForm

PARTS = ("issue", "aggregate", "inject")
CHECKED = 5
"""Clients whose models are traced."""


@dataclass(frozen=True)
class Large(Scaled):
    name: str = "large"

    def cases(self) -> list[Case]:
        if self.scale == "smoke":
            return [_case("mlp", (1, 8, 8), clients, 10, 0.1) for clients in (4, 8)]
        return [
            _case("vit-b16", (3, 224, 224), clients, 1000, minutes) for clients, minutes in ((10, 4.0), (100, 12.0))
        ]

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        asked = case.settings
        names = [f"client-{i:03d}" for i in range(asked["clients"])]
        keyring = Keyring.generate(
            clients=names,
            classes=asked["classes"],
            input_shape=tuple(asked["shape"]),
            normalise=(0.5, 0.5),
            pool=asked["pool"],
            secret=b"a study of large models" + bytes([seed]) * 9,
        )
        model = models.build(asked["model"], input_shape=tuple(asked["shape"]), classes=asked["classes"], seed=seed)
        server = Traced(model.to(torch.device(bench.device)), keyring, warmup_rounds=1, injection=ClosedForm(retouch=0))
        for turn in (1, 2):
            bench.say(f"round {turn} of 2")
            seconds = _round(server, seed)
        traced, confidence = [], []
        for client in names[:CHECKED]:
            bench.say(f"traces {client}")
            with loaded(server.model, server.fleet, server.fleet.weights(client)) as own:
                traced.append(server.verify(own).accused == (client,))
                confidence.append(server.confidence(own, client))
        return {
            "weights": server.fleet.layout.size,
            **{f"seconds_{part}": round(value, 2) for part, value in seconds.items()},
            "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "copies_mib": round(len(names) * server.fleet.layout.size * 4 / 2**20),
            "vr": mean(traced),
            "confidence": mean(confidence),
        }

    def table(self, rows: Sequence[Row]) -> str:
        lines = [
            [
                f"{model}, {clients} clients",
                f"{own[0]['weights'] / 1e6:.1f}",
                *(number([row[f"seconds_{part}"] for row in own], ".1f") for part in PARTS),
                number([row["peak_mib"] for row in own], ".0f"),
                number([row["copies_mib"] for row in own], ".0f"),
                percent([row["vr"] for row in own], 1),
                number([row["confidence"] for row in own]),
            ]
            for (model, clients), own in by(rows, "model", "clients").items()
        ]
        headings = [
            "federation",
            "weights, M",
            "issue, s",
            "aggregate, s",
            "marks, s",
            "peak, MiB",
            "copies, MiB",
            "VR",
            "confidence",
        ]
        return (
            f"{markdown_table(headings, lines)}\n\nSeconds are of a whole round, for all clients. "
            f"*Copies* is what a copy of the model for each client would take. VR and confidence are those of "
            f"{CHECKED} clients' models as issued. The paper trains such a federation on ImageNet for 60 rounds from "
            f"pretrained weights, and reports MA {paper.LARGE.ma:.2f} and VR {paper.LARGE.vr:.0f}."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        names = dict(zip(PARTS, ("issue", "aggregate", "make marks"), strict=True))
        panels = {
            "seconds of a round": {
                words: [(row["settings"]["clients"], row[f"seconds_{part}"]) for row in rows if row["seed"] == 0]
                for part, words in names.items()
            }
        }
        return plots.lines(path, panels, across="clients", percent=False)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        most = max(rows, key=lambda row: int(row["settings"]["clients"]))
        return [
            Glance(
                f"VR as issued, {most['settings']['clients']} clients, {most['settings']['model']}",
                f"{paper.LARGE.vr:.2f}",
                percent([most["vr"]]),
            )
        ]


def _case(model: str, shape: tuple[int, ...], clients: int, classes: int, minutes: float) -> Case:
    settings = {"model": model, "shape": list(shape), "clients": clients, "classes": classes, "pool": 64}
    return Case(f"{model}-{clients}", settings, minutes=minutes)


def _round(server: Traced, seed: int) -> dict[str, float]:
    """Play a round; returns the seconds of each part."""
    seconds = dict.fromkeys(PARTS, 0.0)
    aggregation, outgoing = server.begin(), server.dispatch()
    for place, client in enumerate(outgoing):
        began = time.perf_counter()
        state = outgoing[client]
        seconds["issue"] += time.perf_counter() - began
        _move(state, 1_000_003 * (server.round + 17 * seed) + place)
        began = time.perf_counter()
        aggregation.add(client, state)
        seconds["aggregate"] += time.perf_counter() - began
    began = time.perf_counter()
    server.end(aggregation)
    seconds["inject"] = time.perf_counter() - began
    return seconds


def _move(state: dict[str, Tensor], seed: int) -> None:
    """Move matrices by products of rank four, and everything else a little, as training would."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in state.values():
        if not tensor.is_floating_point():
            continue
        if tensor.dim() >= 2:
            rows, columns = len(tensor), tensor[0].numel()
            left, right = (torch.randn(size, 4, generator=generator) for size in (rows, columns))
            tensor += (1e-3 * (left @ right.T)).view_as(tensor).to(tensor.device)
        else:
            tensor += 1e-3 * torch.randn(tensor.shape, generator=generator).to(tensor.device)
