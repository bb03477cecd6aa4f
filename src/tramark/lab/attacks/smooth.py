"""Label smoothing: fine-tuning towards (1 − s)·label + s/r, which takes away the confidence that marks live on. The
Watermark-Robustness-Toolbox takes s = 0.3 and 5 epochs."""

from dataclasses import dataclass

from torch import nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import check_training, fit


@dataclass(frozen=True)
class LabelSmoothing:
    """Fine-tuning with labels that are only mostly right."""

    smoothing: float = 0.3
    epochs: int = 5
    lr: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        if not 0 <= self.smoothing < 1:
            raise SettingError(f"smoothing must lie in [0, 1), not {self.smoothing}")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        smooth = copied(model)
        fit(
            smooth,
            loot,
            lambda inputs, labels: F.cross_entropy(smooth(inputs), labels, label_smoothing=self.smoothing),
            epochs=self.epochs,
            lr=self.lr,
            generator=generator(self.seed),
        )
        return smooth
