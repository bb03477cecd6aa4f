"""Tasks made of the data sets in the catalogue: some classes of one, two of them together, pictures as tokens.

A task knows which data sets it needs, so that a study can say what is missing before it runs anything.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.lab import data
from tramark.lab.data import Dataset
from tramark.lab.models.pretrained import minilm_tokens


@dataclass(frozen=True)
class Task:
    """The data sets that a task needs, and how it is made of those in a folder, the cache or at their sources."""

    sets: tuple[str, ...]
    load: Callable[[Path | None], Dataset]


def first_classes(name: str, count: int) -> Task:
    """The task of telling the first `count` classes of a set apart."""

    def load(data_dir: Path | None) -> Dataset:
        whole = data.load(name, data_dir=data_dir)
        train, test = whole.train_labels < count, whole.test_labels < count
        return replace(
            whole,
            train_inputs=whole.train_inputs[train],
            train_labels=whole.train_labels[train],
            test_inputs=whole.test_inputs[test],
            test_labels=whole.test_labels[test],
            classes=count,
            augment=False,
        )

    return Task((name,), load)


def digits_and_clothes(data_dir: Path | None) -> Dataset:
    """MNIST and Fashion-MNIST together: twenty classes."""
    one, other = (data.load(name, data_dir=data_dir) for name in ("mnist", "fashion-mnist"))
    return replace(
        one,
        name="digits-and-clothes",
        train_inputs=torch.cat([one.train_inputs, other.train_inputs]),
        train_labels=torch.cat([one.train_labels, other.train_labels + one.classes]),
        test_inputs=torch.cat([one.test_inputs, other.test_inputs]),
        test_labels=torch.cat([one.test_labels, other.test_labels + one.classes]),
        classes=one.classes + other.classes,
    )


def smaller(name: str, size: int) -> Task:
    """A set with its pictures averaged down to `size`×`size`."""

    def load(data_dir: Path | None) -> Dataset:
        whole = data.load(name, data_dir=data_dir)

        def shrunk(pictures: Tensor) -> Tensor:
            small = [F.interpolate(some.float(), size=(size, size), mode="area") for some in pictures.split(1000)]
            return torch.cat(small).round().to(torch.uint8)

        return replace(
            whole,
            train_inputs=shrunk(whole.train_inputs),
            test_inputs=shrunk(whole.test_inputs),
            augment=False,
        )

    return Task((name,), load)


def as_tokens(name: str) -> Task:
    """A set of grey pictures as sequences of 49 tokens: the pictures' 4×4 blocks in sixteen shades and two slopes."""

    def load(data_dir: Path | None) -> Dataset:
        whole = data.load(name, data_dir=data_dir)

        def tokens(pictures: Tensor) -> Tensor:
            blocks = F.unfold(pictures[:, :1].float(), 4, stride=4).unflatten(1, (4, 4))
            shade = (blocks.mean((1, 2)) / 16).long()
            down = (blocks[:, 2:].mean((1, 2)) > blocks[:, :2].mean((1, 2))).long()
            across = (blocks[:, :, 2:].mean((1, 2)) > blocks[:, :, :2].mean((1, 2))).long()
            found: Tensor = 2 + 4 * shade + 2 * down + across
            return found

        return replace(
            whole,
            name=f"{name}-tokens",
            train_inputs=tokens(whole.train_inputs),
            test_inputs=tokens(whole.test_inputs),
            kind="text",
            vocabulary=66,
        )

    return Task((name,), load)


def as_rows(name: str) -> Task:
    """A set of pictures as a table of standardised numbers."""

    def load(data_dir: Path | None) -> Dataset:
        whole = data.load(name, data_dir=data_dir)
        train, test = whole.train_inputs.flatten(1).float(), whole.test_inputs.flatten(1).float()
        mean, std = train.mean(0), train.std(0)
        live = std > 0
        return replace(
            whole,
            name=f"{name}-rows",
            train_inputs=((train - mean) / std)[:, live],
            test_inputs=((test - mean) / std)[:, live],
            kind="tabular",
        )

    return Task((name,), load)


def plain(name: str) -> Task:
    """A set as it is, without augmentation."""
    return Task((name,), lambda data_dir: replace(data.load(name, data_dir=data_dir), augment=False))


def as_wordpieces(name: str, length: int) -> Task:
    """A set of sentences as MiniLM's own tokens, `length` of them each."""

    def load(data_dir: Path | None) -> Dataset:
        train, test = data.sentences(name, data_dir=data_dir)
        train_inputs, vocabulary = minilm_tokens(train, length)
        return replace(
            data.load(name, data_dir=data_dir),
            name=f"{name}-wordpiece",
            train_inputs=train_inputs,
            test_inputs=minilm_tokens(test, length)[0],
            vocabulary=vocabulary,
        )

    return Task((name,), load)


TASKS: dict[str, Task] = {
    "mnist": plain("mnist"),
    "fashion-mnist": plain("fashion-mnist"),
    "digits": plain("digits"),
    "digits-rows": as_rows("digits"),
    "digits-and-clothes": Task(("mnist", "fashion-mnist"), digits_and_clothes),
    "cifar-10": plain("cifar-10"),
    "cifar-100": plain("cifar-100"),
    "cifar-50": first_classes("cifar-100", 50),
    "svhn": plain("svhn"),
    "svhn-16": smaller("svhn", 16),
    "tiny-imagenet-32": smaller("tiny-imagenet", 32),
    "pneumonia-mnist": plain("pneumonia-mnist"),
    "adult": plain("adult"),
    "sst2": plain("sst2"),
    "sst2-wordpiece": as_wordpieces("sst2", 32),
    "mnist-tokens": as_tokens("mnist"),
    "fashion-tokens": as_tokens("fashion-mnist"),
}


def load(name: str, data_dir: Path | None) -> Dataset:
    """The task of a name."""
    return _named(name).load(data_dir)


def sets(name: str) -> tuple[str, ...]:
    """The names of the data sets that a task needs."""
    return _named(name).sets


def _named(name: str) -> Task:
    if name not in TASKS:
        raise SettingError(f"no task named {name!r}; there are {', '.join(TASKS)}")
    return TASKS[name]
