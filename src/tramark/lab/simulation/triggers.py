"""What the questions of a run are made of, and the test images with which Algorithm 3 of the paper verifies."""

from pathlib import Path
from typing import Literal

from torch import Tensor

from tramark.errors import SettingError
from tramark.keys.keyring import Assignment
from tramark.keys.pictures import LabelledImages, Patterns, WafflePatterns, fitted
from tramark.keys.sources import Source, Tokens, Vectors
from tramark.lab import data
from tramark.lab.data import Dataset
from tramark.lab.names import TriggerKind

Verification = Literal["held-out", "test-set"]
"""What issued models are verified with: held-out variants of the questions, or all test images of clients' labels."""

RELEASED_STD = {"cifar-10": (0.247, 0.243, 0.261)}
"""The standard deviation of the authors' triggers, where it is not that of the task."""


def kind_of(kind: TriggerKind, dataset: Dataset, answers: Assignment, clients: int) -> TriggerKind:
    """The kind that "auto" stands for; `SettingError` if there are not enough labelled images for the clients."""
    images = kind if kind in ("mnist", "svhn") else None
    if kind == "auto" and dataset.kind == "image" and answers == "label":
        images = "mnist" if clients <= 10 else None
        kind = images or "waffle"
    if images and answers == "label" and clients > 10:
        raise SettingError(
            f"{images} has images of ten kinds, one for each client, but there are {clients} clients: say "
            "--triggers waffle (the paper's choice for so many), or --answers code"
        )
    return "patterns" if kind == "auto" else kind


def triggers(
    kind: TriggerKind, dataset: Dataset, *, count: int, answers: Assignment, released: bool, data_dir: Path | None
) -> Source:
    """The source of a run's questions; `count` images of each are trained on with label answers.

    `released` takes the first images of each label, normalised as the authors' code does it.
    """
    if dataset.kind == "tabular":
        return Vectors(dataset.input_shape[0])
    if dataset.kind == "text":
        return Tokens(dataset.input_shape[0], vocabulary=dataset.vocabulary)
    channels, height, width = dataset.input_shape
    shape = (channels, height, width)
    if kind == "patterns":
        return Patterns(shape, mean=dataset.mean, std=dataset.std)
    if kind == "waffle":
        return WafflePatterns(shape, mean=dataset.mean, std=dataset.std)
    other = data.load(kind, data_dir=data_dir)
    return LabelledImages(
        other.train_inputs,
        other.train_labels,
        shape,
        mean=dataset.mean,
        std=RELEASED_STD.get(dataset.name, dataset.std) if released else dataset.std,
        name=other.name,
        # Code answers have two variants to train on and four held out of each of hundreds of questions.
        per_question=count + 100 if answers == "label" else 6,
        ordered=released,
    )


def tests(kind: TriggerKind, dataset: Dataset, clients: int, data_dir: Path | None) -> tuple[Tensor, ...]:
    """Each client's test images, raw: all those of its label."""
    if kind not in ("mnist", "svhn"):
        raise SettingError(f"the test set of {kind} triggers: there is one of mnist and svhn only")
    other = data.load(kind, data_dir=data_dir)
    channels, height, width = dataset.input_shape
    return tuple(
        fitted(other.test_inputs[other.test_labels == label], (channels, height, width)) for label in range(clients)
    )
