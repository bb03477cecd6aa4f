"""Adversarial training: fine-tuning on inputs that were moved, within ε of where they were, to where the model fails.

    x ← clip_ε(x + α·sign ∇ₓ CE),   from a random start (PGD)

Questions are odd inputs that a model answers oddly; a model that answers steadily around the thief's own inputs may
answer them no more. The Watermark-Robustness-Toolbox takes ε of 0.01, 0.1 or 0.25, and 5 epochs on 1000 samples.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import check_training, fit, some


@dataclass(frozen=True)
class AdversarialTraining:
    """Fine-tuning on adversarial inputs.

    Parameters
    ----------
    epsilon : how far any number of an input is moved: for images a share of the range from black to white, for tables
        in the columns' own units.
    steps : of the search, each of 2.5·ε/steps.
    samples : how many of the thief's samples are used.
    """

    epsilon: float = 0.1
    epochs: int = 5
    lr: float = 1e-3
    steps: int = 7
    samples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        if not self.epsilon > 0 or self.steps < 1:
            raise SettingError(f"epsilon must be positive, and steps at least 1, not {self.epsilon} and {self.steps}")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        if loot.dataset.kind == "text":
            raise SettingError("words cannot be moved by a little: adversarial training is for images and tables")
        hardened, random = copied(model), generator(self.seed)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(hardened(self.perturbed(hardened, inputs, labels, loot, random)), labels)

        few = some(loot, self.samples, random)
        fit(hardened, few, loss, epochs=self.epochs, lr=self.lr, generator=random)
        return hardened

    def perturbed(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, loot: Loot, random: torch.Generator
    ) -> Tensor:
        """Inputs, as the model takes them, moved to where it fails; the model's mode and weights stay as they are."""
        low, high, reach = input_range(inputs, loot)
        reach = self.epsilon * reach
        start = 2 * torch.rand(inputs.shape, generator=random).to(inputs) - 1
        moved = (inputs + reach * start).clamp(low, high)
        training = [module for module in model.modules() if module.training]
        # Otherwise dropout would blur the search, and its inputs would enter the norms' statistics.
        model.eval()
        for _ in range(self.steps):
            moved.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(moved), labels), moved)
            moved = moved.detach() + 2.5 / self.steps * reach * slope.sign()
            moved = torch.minimum(torch.maximum(moved, inputs - reach), inputs + reach).clamp(low, high)
        for module in training:
            module.training = True
        return moved


def input_range(inputs: Tensor, loot: Loot) -> tuple[Tensor, Tensor, Tensor]:
    """The lowest and highest values an input can take, and the unit in which ε is told."""
    one = torch.ones_like(inputs[:1])
    if loot.dataset.kind != "image":
        return -torch.inf * one, torch.inf * one, one
    low, high = (loot.prepare(torch.full_like(one, value, dtype=torch.uint8)).to(inputs) for value in (0.0, 255.0))
    return low, high, high - low
