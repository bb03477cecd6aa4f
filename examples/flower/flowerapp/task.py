"""What is learnt, and from what: the model, the data, and one node's share of them."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tramark.keys.pictures import Patterns
from tramark.lab import data, models
from tramark.lab.data import Dataset
from tramark.lab.simulation.client import LocalTraining, accuracy
from tramark.lab.simulation.partition import iid

MODEL = "cnn"

Config = Mapping[str, Any]


@cache
def load_data(name: str) -> Dataset:
    """The data set of this name; "auto" is Fashion-MNIST, or scikit-learn's digits where that cannot be had."""
    return data.load(name)


def make_model(dataset: Dataset, seed: int) -> nn.Module:
    return models.build(MODEL, input_shape=dataset.input_shape, classes=dataset.classes, seed=seed)


def questions(dataset: Dataset) -> Patterns:
    """What marked models are asked, normalised like the data that they learn from."""
    channels, height, width = dataset.input_shape
    return Patterns((channels, height, width), mean=dataset.mean, std=dataset.std)


def train(model: nn.Module, dataset: Dataset, node: Config, run: Config, *, round: int) -> tuple[float, int]:
    """Train a model in place on a node's share; gives the loss and the number of samples."""
    own = _share(dataset.train_labels, node, run)
    learn = LocalTraining(epochs=int(run["local-epochs"]), lr=float(run["lr"]))
    generator = torch.Generator().manual_seed(int(run["seed"]) + 1000 * round + int(node["partition-id"]))
    return learn(model, dataset, own, generator=generator), len(own)


def test(model: nn.Module, dataset: Dataset, node: Config, run: Config) -> tuple[float, int]:
    """A model's accuracy on a node's share of the test set, and the number of samples."""
    own = _share(dataset.test_labels, node, run)
    return accuracy(model, dataset.test_inputs[own], dataset.test_labels[own], prepare=dataset.prepare), len(own)


def _share(labels: Tensor, node: Config, run: Config) -> Tensor:
    generator = torch.Generator().manual_seed(int(run["seed"]))
    shares = iid(
        labels,
        int(node["num-partitions"]),
        generator=generator,
        samples_per_client=int(run["samples-per-client"]),
    )
    return shares[int(node["partition-id"])]
