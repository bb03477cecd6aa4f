"""Noise on the weights: alone, or as the first half of weight shifting, w ← w − (λ·mean w + N(0, std² w)), after which
the model is trained again (Watermark-Robustness-Toolbox: λ 1.5 or 2.5, 10 epochs)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import check_training, layers, train


@dataclass(frozen=True)
class WeightNoise:
    """Normal noise on every tensor of weights, of `scale` times the tensor's own standard deviation."""

    scale: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.scale < math.inf:
            raise SettingError(f"the scale of the noise must be a number from 0 on, not {self.scale}")

    @torch.no_grad()
    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        noisy, random = copied(model), generator(self.seed)
        for weight in noisy.parameters():
            if weight.is_floating_point():
                weight.add_(_noise(weight, random), alpha=self.scale)
        return noisy


@dataclass(frozen=True)
class WeightShift:
    """The weights of each layer moved against their mean, with noise as large as they are; then trained again.

    Parameters
    ----------
    lam : λ, how many times the mean is taken off.
    noise : the noise's standard deviation, in the layer's own.
    """

    lam: float = 1.5
    epochs: int = 10
    lr: float = 0.01
    noise: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr, least=0)
        if not (math.isfinite(self.lam) and 0 <= self.noise < math.inf):
            raise SettingError(f"lam must be a number, and noise one from 0 on, not {self.lam} and {self.noise}")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        shifted, random = copied(model), generator(self.seed)
        with torch.no_grad():
            for layer in layers(shifted).values():
                weight = layer.weight
                weight.sub_(self.lam * weight.mean() + self.noise * _noise(weight, random))
        train(shifted, loot, epochs=self.epochs, lr=self.lr, generator=random)
        return shifted


def _noise(weight: Tensor, random: torch.Generator) -> Tensor:
    """Normal noise with a tensor's own standard deviation, drawn alike for all devices."""
    return torch.randn(weight.shape, generator=random).to(weight) * weight.std(correction=0)
