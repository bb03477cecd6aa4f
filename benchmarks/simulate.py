"""How fast a round's clients train in the simulator, against the way of the released code.

That is one client after another in one process with all of torch's threads, a `DataLoader` over a data set which crops,
flips and normalises image by image, and a model in the default memory layout. Ours is the simulator as `tramark run`
has it: a worker process a core, data in memory as bytes, batches prepared whole, and the layout in which convolutions
are fastest. Both train the same clients from the same model on the same samples with the same optimiser, taking turns.
Models on their way to the workers and back are timed; the start of the workers, once a run, has a column of its own.

    python benchmarks/simulate.py --json
"""

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rows import parser, show
from tramark.lab import data
from tramark.lab.data import Dataset
from tramark.lab.methods import FedAvg
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining
from tramark.lab.simulation.simulator import Simulation

DATA = {"cnn": "fashion-mnist", "small-cnn": "cifar-10"}


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Samples prepared one by one."""

    def __init__(self, dataset: Dataset, part: Tensor) -> None:
        self.dataset, self.part = dataset, part.tolist()
        self.mean, self.std = (torch.tensor(v or (0.5,)).view(-1, 1, 1) for v in (dataset.mean, dataset.std))

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        image = self.dataset.train_inputs[self.part[number]]
        if self.dataset.augment:
            top, left = torch.randint(9, (2,)).tolist()
            image = F.pad(image, (4, 4, 4, 4))[:, top : top + image.shape[1], left : left + image.shape[2]]
            image = image.flip(2) if torch.rand(()) < 0.5 else image
        return (image.float() / 255 - self.mean) / self.std, int(self.dataset.train_labels[self.part[number]])


def loader_style(model: nn.Module, dataset: Dataset, parts: Sequence[Tensor], training: LocalTraining) -> None:
    for part in parts:
        _train_by_loader(copy.deepcopy(model), dataset, part, training)


def _train_by_loader(model: nn.Module, dataset: Dataset, part: Tensor, training: LocalTraining) -> None:
    loader = torch.utils.data.DataLoader(Images(dataset, part), training.batch_size, shuffle=True, drop_last=True)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    model.train()
    for _ in range(training.epochs):
        for x, y in loader:
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()


def measure(name: str, clients: int, samples: int, repeats: int, workers: int) -> dict[str, Any]:
    dataset, training = data.load(DATA[name]), LocalTraining(epochs=1)
    model = build(name, input_shape=dataset.input_shape, classes=dataset.classes, seed=0)
    parts = torch.arange(clients * samples).split(samples)
    method = FedAvg(model, [f"client-{i}" for i in range(clients)])
    with Simulation(method, dataset, parts, training, workers=workers) as simulation:
        began = time.perf_counter()
        if workers > 1:
            simulation.start()
        start = time.perf_counter() - began
        ways: dict[str, Callable[[], object]] = {
            "ours": simulation.train,
            "loader": lambda: loader_style(model, dataset, parts, training),
        }
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, train in ways.items():
                began = time.perf_counter()
                train()
                trained = clients * (samples // training.batch_size) * training.batch_size
                rates[way].append(trained / (time.perf_counter() - began))
    medians = {way: statistics.median(found) for way, found in rates.items()}
    return {
        "model": name,
        "workers": workers,
        "seconds_to_start": round(start, 1),
        "samples_per_second_ours": round(medians["ours"]),
        "samples_per_second_loader": round(medians["loader"]),
        "speedup": round(medians["ours"] / medians["loader"], 2),
    }


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--models", nargs="+", default=list(DATA), choices=DATA)
    asked.add_argument("--clients", type=int, default=10)
    asked.add_argument("--samples", type=int, default=640, help="of each client")
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--workers", type=int, default=torch.get_num_threads(), help="a core each, unless told")
    options = asked.parse_args()
    rows = [
        measure(name, options.clients, options.samples, options.repeats, options.workers) for name in options.models
    ]
    show(rows, options.json)


if __name__ == "__main__":
    main()
