"""Distillation and extraction: a fresh model learns the stolen one's answers, and none of its weights.

Distillation follows the soft answers to the thief's own samples, T²·KL(softmax(teacher/T) ‖ softmax(student/T));
extraction the labels alone, as somebody without the model's scores would; a knockoff the labels for inputs that are not
the task's at all. The Watermark-Robustness-Toolbox takes T = 3, 60 epochs and a rate of 0.1. Here the rate falls along
a half cosine, and gradients are cut at a norm of 1: without that the paper's CNN, which has no batch norm, learns
nothing at such a rate.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.fleet.scratch import device_of
from tramark.lab import models
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import check_training, fit, reset
from tramark.lab.simulation.client import predict

CLIP = 1.0


@dataclass(frozen=True)
class Distil:
    """A student that learns from the teacher's scores.

    Parameters
    ----------
    temperature : by which both models' scores are divided.
    architecture : a name that `tramark.lab.models.build` knows; by default the same as the stolen model's, with every
        layer started as torch starts it.
    """

    epochs: int = 60
    lr: float = 0.1
    temperature: float = 3.0
    architecture: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        _check_name(self.architecture)
        if not self.temperature > 0:
            raise SettingError(f"the temperature must be positive, not {self.temperature}")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        teacher, random = copied(model), generator(self.seed)
        student = _fresh(teacher, loot, self.architecture, random)

        def loss(inputs: Tensor, _: Tensor) -> Tensor:
            with torch.no_grad():
                wanted = F.log_softmax(teacher(inputs) / self.temperature, dim=1)
            said = F.log_softmax(student(inputs) / self.temperature, dim=1)
            return self.temperature**2 * F.kl_div(said, wanted, log_target=True, reduction="batchmean")

        fit(student, loot, loss, epochs=self.epochs, lr=self.lr, generator=random, decay=True, clip=CLIP)
        return student


@dataclass(frozen=True)
class Extract:
    """A student that learns from the teacher's labels for the thief's samples, each asked once."""

    epochs: int = 60
    lr: float = 0.1
    architecture: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        _check_name(self.architecture)

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        teacher, random = copied(model), generator(self.seed)
        return _copy_labels(teacher, loot, loot.inputs, self.architecture, self.epochs, self.lr, random)


@dataclass(frozen=True)
class Knockoff:
    """A student that learns from the teacher's labels for inputs that are not the task's.

    Parameters
    ----------
    inputs : "noise" draws every number by itself (bytes, numbers within three standard deviations, token ids).
        "synthetic" makes images of smooth and blocky colours; for tables and text it draws every column from a sample
        of its own.
    samples : how many.
    """

    epochs: int = 60
    lr: float = 0.1
    inputs: Literal["noise", "synthetic"] = "synthetic"
    samples: int = 5000
    architecture: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        _check_name(self.architecture)
        if self.inputs not in ("noise", "synthetic"):
            raise SettingError(f"inputs is {self.inputs!r}: say 'noise' or 'synthetic'")
        if self.samples < 1:
            raise SettingError(f"{self.samples} samples: there must be at least one")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        teacher, random = copied(model), generator(self.seed)
        other = (_noise if self.inputs == "noise" else _synthetic)(loot, self.samples, random)
        return _copy_labels(teacher, loot, other, self.architecture, self.epochs, self.lr, random)


def _copy_labels(
    teacher: nn.Module,
    loot: Loot,
    inputs: Tensor,
    architecture: str | None,
    epochs: int,
    lr: float,
    random: torch.Generator,
) -> nn.Module:
    student = _fresh(teacher, loot, architecture, random)
    scores = predict(teacher, inputs, prepare=loot.prepare)
    dataset = replace(loot.dataset, train_inputs=inputs, train_labels=scores.argmax(1), classes=scores.shape[1])
    relabelled = Loot(dataset, torch.arange(len(inputs)))

    def loss(batch: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(student(batch), labels)

    fit(student, relabelled, loss, epochs=epochs, lr=lr, generator=random, decay=True, clip=CLIP)
    return student


def _fresh(teacher: nn.Module, loot: Loot, architecture: str | None, random: torch.Generator) -> nn.Module:
    """A model that knows nothing yet, with as many labels as the teacher has, where the teacher is."""
    if architecture is None:
        student = copied(teacher)
        reset(student, random)
        return student
    one = loot.dataset.train_inputs[loot.indices[:1]]
    student = models.build(
        architecture,
        input_shape=loot.dataset.input_shape,
        classes=predict(teacher, one, prepare=loot.prepare).shape[1],
        vocabulary=loot.dataset.vocabulary,
        seed=int(torch.randint(2**31, (), generator=random)),
    )
    return student.to(device_of(teacher))


def _noise(loot: Loot, count: int, random: torch.Generator) -> Tensor:
    dataset = loot.dataset
    shape = (count, *dataset.input_shape)
    match dataset.kind:
        case "image":
            return torch.randint(256, shape, generator=random, dtype=torch.uint8)
        case "tabular":
            return 6 * torch.rand(shape, generator=random) - 3
        case "text":
            return torch.randint(dataset.vocabulary, shape, generator=random)


def _synthetic(loot: Loot, count: int, random: torch.Generator) -> Tensor:
    if loot.dataset.kind != "image":
        columns = loot.dataset.input_shape[0]
        drawn = loot.indices[torch.randint(len(loot.indices), (count, columns), generator=random)]
        return loot.dataset.train_inputs[drawn, torch.arange(columns)]
    channels, height, width = loot.dataset.input_shape
    pictures = torch.zeros(count, channels, height, width)
    for mode in ("bilinear", "nearest"):
        for cells in (2, 4, 8):
            grid = torch.randn(count, channels, cells, cells, generator=random)
            weight = torch.rand(count, 1, 1, 1, generator=random)
            pictures += weight * F.interpolate(grid, size=(height, width), mode=mode)
    return (127.5 + 80 * pictures).round().clamp(0, 255).to(torch.uint8)


def _check_name(architecture: str | None) -> None:
    if architecture is not None and architecture not in models.NAMES:
        raise SettingError(f"no model named {architecture!r}; there are {', '.join(models.NAMES)}")
