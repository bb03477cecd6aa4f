"""Fine-tuning and re-training: the thief goes on training the model on samples of its own.

The Watermark-Robustness-Toolbox fine-tunes all layers or the last one for 5 epochs at a rate of 10⁻³, and re-trains,
with a fresh last layer, all layers for 5 epochs or the last one for 10.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import check_training, norms_at_rest, output_layer, reset, train

Which = Literal["all", "last"]


@dataclass(frozen=True)
class FineTune:
    """Some more training, of all layers or of the last one only."""

    epochs: int = 5
    lr: float = 1e-3
    layers: Which = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.epochs, self.lr, self.layers)

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        tuned = copied(model)
        _train(tuned, loot, self.epochs, self.lr, self.layers, generator(self.seed))
        return tuned


@dataclass(frozen=True)
class Retrain:
    """The last layer starts anew; then it alone is trained, or all layers are (for that, the source takes 5 epochs)."""

    epochs: int = 10
    lr: float = 1e-3
    layers: Which = "last"
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.epochs, self.lr, self.layers)

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        trained, random = copied(model), generator(self.seed)
        reset(trained.get_submodule(output_layer(trained)), random)
        _train(trained, loot, self.epochs, self.lr, self.layers, random)
        return trained


def _train(model: nn.Module, loot: Loot, epochs: int, lr: float, which: Which, random: torch.Generator) -> None:
    if which == "all":
        train(model, loot, epochs=epochs, lr=lr, generator=random)
        return
    last = output_layer(model)
    only = [f"{last}.{name}" for name, _ in model.get_submodule(last).named_parameters()]
    with norms_at_rest(model):
        train(model, loot, epochs=epochs, lr=lr, generator=random, only=only)


def _check(epochs: int, lr: float, which: Which) -> None:
    check_training(epochs, lr)
    if which not in ("all", "last"):
        raise SettingError(f"layers is {which!r}: say 'all' or 'last'")
