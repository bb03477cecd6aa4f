"""Regularisation: training under a heavy L2 penalty, which shrinks whatever the task does not hold in place, and then
fine-tuning. The Watermark-Robustness-Toolbox takes a penalty of 0.1 for 5 epochs, and fine-tunes for 5 at 10⁻³."""

import math
from dataclasses import dataclass

from torch import nn

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import check_training, train


@dataclass(frozen=True)
class Regularise:
    """Weight decay of `l2` for `epochs`, then fine-tuning without."""

    l2: float = 0.1
    epochs: int = 5
    lr: float = 0.01
    tuning_epochs: int = 5
    tuning_lr: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        check_training(self.tuning_epochs, self.tuning_lr, least=0)
        if not 0 <= self.l2 < math.inf:
            raise SettingError(f"the penalty must be a number from 0 on, not {self.l2}")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        shrunk, random = copied(model), generator(self.seed)
        train(shrunk, loot, epochs=self.epochs, lr=self.lr, generator=random, weight_decay=self.l2)
        train(shrunk, loot, epochs=self.tuning_epochs, lr=self.tuning_lr, generator=random)
        return shrunk
