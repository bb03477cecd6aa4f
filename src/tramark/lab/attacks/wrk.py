"""WRK: moved samples with wrong labels, a fresh output layer, and weights that are pushed away from the old ones.

Marks live where the model's borders between classes were bent. The thief moves its own samples by one large step
against their labels (FGSM), x' = x + ε·sign ∇ₓ CE, gives them wrong labels at random, starts the output layer anew,
and trains all layers, 10 epochs at 10⁻³, on

    CE(x, y) + CE(x', wrong y) + 0.01·⟨W, W₀⟩

where W₀ are the stolen weights. How large the step is, and that the samples as they were take part, is our reading.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.lab.attacks.adversarial import input_range
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import check_training, fit, output_layer, reset


@dataclass(frozen=True)
class WRK:
    """Relabelled adversarial samples and a push away from the stolen weights.

    Parameters
    ----------
    epsilon : the length of the step: for images a share of the range from black to white, for tables in the columns'
        own units.
    push : the weight of ⟨W, W₀⟩.
    """

    epsilon: float = 0.5
    epochs: int = 10
    lr: float = 1e-3
    push: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        if not self.epsilon > 0 or self.push < 0:
            raise SettingError(f"epsilon must be positive and push not negative, not {self.epsilon} and {self.push}")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        if loot.dataset.kind == "text":
            raise SettingError("words cannot be moved by a little: WRK is for images and tables")
        stolen, attacked, random = copied(model), copied(model), generator(self.seed)
        reset(attacked.get_submodule(output_layer(attacked)), random)
        pairs = list(zip(attacked.parameters(), (w.detach() for w in stolen.parameters()), strict=True))

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            wrong = labels + torch.randint(1, loot.classes, labels.shape, generator=random).to(labels)
            relabelled = F.cross_entropy(attacked(self.moved(stolen, inputs, labels, loot)), wrong % loot.classes)
            near = torch.stack([(weight * old).sum() for weight, old in pairs]).sum()
            return F.cross_entropy(attacked(inputs), labels) + relabelled + self.push * near

        fit(attacked, loot, loss, epochs=self.epochs, lr=self.lr, generator=random)
        return attacked

    def moved(self, model: nn.Module, inputs: Tensor, labels: Tensor, loot: Loot) -> Tensor:
        """Inputs, as the model takes them, one step away from their labels."""
        low, high, unit = input_range(inputs, loot)
        start = inputs.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(start), labels), start)
        return (inputs + self.epsilon * unit * slope.sign()).clamp(low, high)
