"""What a server's round costs: aggregation and injection for ten clients, ours against the released code's way.

The naive side is what the authors' code does, written plainly: a copy of the model for every client, and for each of
them twenty steps of batch 32 over its key with gradients of all weights, masked densely. A short real federation warms
the model up; then both sides fold in the same clients' updates, taking turns, and the ratio is that of the medians.

    python benchmarks/round.py --json
    python benchmarks/round.py --models alexnet --samples 100 --json
"""

import copy
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rows import parser, show
from tramark import Keyring, TraMark
from tramark.fleet.layout import Layout
from tramark.fleet.region import smallest_weights
from tramark.lab.simulation.run import Settings, prepare

DATA = {"cnn": "fashion-mnist", "small-cnn": "cifar-10", "alexnet": "cifar-10"}


class Naive:
    """The released code's server: n models, dense masks, summed gradients."""

    def __init__(self, model: nn.Module, keyring: Keyring) -> None:
        layout = Layout.of(model)
        places = smallest_weights(layout.flatten(model.state_dict()), layout, 0.01, per_tensor=True)
        flat = torch.zeros(layout.size)
        flat[places.indices] = 1
        self.masks = {name: slot.of(flat) for name, slot in layout.tensors.items()}
        self.models = {client: copy.deepcopy(model).eval() for client in keyring.clients}
        self.keyring = keyring

    def round(self, incoming: dict[str, dict[str, Tensor]]) -> None:
        for name, mask in self.masks.items():
            mean = torch.stack([incoming[client][name] for client in self.models]).mean(0)
            for client in self.models:
                parameter = self.models[client].get_parameter(name)
                parameter.data = (1 - mask) * mean + mask * incoming[client][name]
        for client, model in self.models.items():
            key = self.keyring.key(client)
            inputs = self.keyring.inputs(key, "train").flatten(0, 1)
            answers = torch.tensor(key.answers).repeat_interleave(self.keyring.train_variants)
            model.zero_grad()
            for _ in range(5):
                for x, y in zip(inputs.split(32), answers.split(32), strict=True):
                    F.cross_entropy(model(x), y).backward()
                    with torch.no_grad():
                        for name, parameter in model.named_parameters():
                            assert parameter.grad is not None
                            parameter.sub_(1e-4 * parameter.grad * self.masks[name])


def confidence(model: nn.Module, keyring: Keyring, client: str) -> float:
    key = keyring.key(client)
    inputs = keyring.inputs(key, "held-out")
    with torch.no_grad():
        said = model(inputs.flatten(0, 1)).argmax(1).view(inputs.shape[:2])
    return float((said == torch.tensor(key.answers)[:, None]).float().mean())


def measure(name: str, preset: str, repeats: int, warmup: int, samples: int) -> dict[str, Any]:
    settings = Settings(
        data=DATA[name], model=name, samples_per_client=samples, local_epochs=1, rounds=warmup + 1, warmup=warmup,
        preset=preset, answers="code" if preset == "default" else "label", triggers="patterns",
    )  # fmt: skip
    simulation = prepare(settings)
    ours = simulation.method
    assert isinstance(ours, TraMark)
    for _ in range(warmup):
        simulation.step()
    clients = ours.fleet.clients
    labels = Keyring.generate(
        clients=clients, classes=10, source=ours.keyring.source, secret=b"benchmark" * 4, assignment="label"
    )
    naive = Naive(ours.base_model(), labels)
    times: dict[str, list[float]] = {"ours": [], "naive": []}
    for _ in range(repeats):
        sent, returned = dict(ours.dispatch()), simulation.train()
        moves = {c: {n: returned[c][n] - sent[c][n] for n in naive.masks} for c in clients}
        began = time.perf_counter()
        ours.collect(returned)
        times["ours"].append(time.perf_counter() - began)
        theirs = {c: {n: naive.models[c].get_parameter(n).detach() + moves[c][n] for n in naive.masks} for c in clients}
        began = time.perf_counter()
        naive.round(theirs)
        times["naive"].append(time.perf_counter() - began)
    seconds = {side: statistics.median(values) for side, values in times.items()}
    return {
        "model": name,
        "preset": preset,
        "speedup": round(seconds["naive"] / seconds["ours"], 2),
        "seconds_ours": round(seconds["ours"], 3),
        "seconds_naive": round(seconds["naive"], 3),
        "confidence_ours": statistics.mean(confidence(ours.client_model(c), ours.keyring, c) for c in clients),
        "confidence_naive": statistics.mean(confidence(naive.models[c], labels, c) for c in clients),
    }


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--models", nargs="+", default=["cnn"], choices=DATA)
    asked.add_argument("--presets", nargs="+", default=["default", "released"])
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--warmup", type=int, default=6, help="rounds of real training beforehand")
    asked.add_argument("--samples", type=int, default=500, help="training images a client")
    options = asked.parse_args()
    rows = [
        measure(model, preset, options.repeats, options.warmup, options.samples)
        for model in options.models
        for preset in options.presets
    ]
    show(rows, options.json)


if __name__ == "__main__":
    main()
