"""How fast clients train in the simulator, against the way of the released code.

That is a `DataLoader` over a data set which crops, flips and normalises image by image, and a model in the default
memory layout. Ours keeps the data in memory as bytes, prepares whole batches and trains in the layout in which
convolutions are fastest. Both do the same epochs of the same number of samples with the same optimiser, taking turns.

    python benchmarks/simulate.py --json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import data
from tramark.data import Dataset
from tramark.federation.client import LocalTraining
from tramark.models import build

DATA = {"cnn": "fashion-mnist", "small-cnn": "cifar-10"}


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Samples prepared one by one."""

    def __init__(self, dataset: Dataset, count: int) -> None:
        self.dataset, self.count = dataset, count
        self.mean, self.std = (torch.tensor(v or (0.5,)).view(-1, 1, 1) for v in (dataset.mean, dataset.std))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        image = self.dataset.train_inputs[number]
        if self.dataset.augment:
            top, left = torch.randint(9, (2,)).tolist()
            image = F.pad(image, (4, 4, 4, 4))[:, top : top + image.shape[1], left : left + image.shape[2]]
            image = image.flip(2) if torch.rand(()) < 0.5 else image
        return (image.float() / 255 - self.mean) / self.std, int(self.dataset.train_labels[number])


def loader_style(model: nn.Module, dataset: Dataset, count: int, training: LocalTraining) -> None:
    loader = torch.utils.data.DataLoader(Images(dataset, count), training.batch_size, shuffle=True, drop_last=True)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    model.train()
    for _ in range(training.epochs):
        for x, y in loader:
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()


def measure(name: str, count: int, repeats: int) -> dict[str, Any]:
    dataset, training = data.load(DATA[name]), LocalTraining(epochs=1)
    shape = dataset.input_shape
    ways: dict[str, Callable[[nn.Module], object]] = {
        "ours": lambda model: training(model, dataset, torch.arange(count), generator=torch.Generator().manual_seed(0)),
        "loader": lambda model: loader_style(model, dataset, count, training),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, train in ways.items():
            model = build(name, input_shape=shape, classes=dataset.classes, seed=0)
            began = time.perf_counter()
            train(model)
            rates[way].append(count // training.batch_size * training.batch_size / (time.perf_counter() - began))
    medians = {way: statistics.median(found) for way, found in rates.items()}
    return {
        "model": name,
        "samples_per_second_ours": round(medians["ours"]),
        "samples_per_second_loader": round(medians["loader"]),
        "speedup": round(medians["ours"] / medians["loader"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(DATA), choices=DATA)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    options = parser.parse_args()
    rows = [measure(name, options.samples, options.repeats) for name in options.models]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
