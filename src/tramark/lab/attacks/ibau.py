"""I-BAU (implicit backdoor adversarial unlearning): the model unlearns a perturbation that fools it on all inputs.

    min over θ of  CE(θ; x + δ*(θ)),   δ*(θ) = the δ of bounded length that maximises CE(θ; x + δ)

One δ is sought for all inputs of a batch. That δ* depends on θ is taken into account: with one more step of the inner
search as a map Φ(δ, θ), the total gradient is ∂L/∂θ + (∂Φ/∂θ)ᵀ v, where v = (∂Φ/∂δ)ᵀ v + ∂L/∂δ is found by some rounds
of iteration. As in the source: 5 rounds, 5 of the iteration, inner rate 0.1 with 0.001·‖δ‖², and Adam at 10⁻³. Its
bound on ‖δ‖, 10 for 3×32×32 numbers, is taken for each number: 0.18. The steps of the search for δ are ours.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.fleet.scratch import device_of
from tramark.lab.attacks.adversarial import input_range
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import batches, check_training, some


@dataclass(frozen=True)
class IBAU:
    """Unlearn universal perturbations, with the implicit gradient.

    Parameters
    ----------
    epochs, lr : of the outer minimisation.
    steps : of the search for δ, and of the iteration for v.
    inner_lr : of the step that is differentiated.
    bound : the greatest length of δ, divided by the square root of its numbers, as a share of the inputs' range.
    samples : how many of the thief's samples are used.
    """

    epochs: int = 5
    lr: float = 1e-3
    steps: int = 5
    inner_lr: float = 0.1
    bound: float = 0.18
    samples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        if self.steps < 1 or not self.bound > 0 or not self.inner_lr > 0:
            raise SettingError(f"steps, bound and inner_lr must be positive, not {self}")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        if loot.dataset.kind == "text":
            raise SettingError("words cannot be moved by a little: I-BAU is for images and tables")
        clean, random = copied(model), generator(self.seed)
        few = some(loot, self.samples, random)
        weights = [weight for weight in clean.parameters() if weight.requires_grad]
        optimiser = torch.optim.Adam(weights, lr=self.lr)
        for _ in range(self.epochs):
            for inputs, labels in batches(few, random, device_of(clean)):
                unit = input_range(inputs, few)[2]
                delta = self.perturbation(clean, inputs, labels, unit)
                for weight, slope in zip(weights, self._slopes(clean, weights, inputs, labels, delta), strict=True):
                    weight.grad = slope
                optimiser.step()
        clean.zero_grad(set_to_none=True)
        return clean

    def perturbation(self, model: nn.Module, inputs: Tensor, labels: Tensor, unit: Tensor) -> Tensor:
        """A δ, the same for all inputs, that the model fails on. `unit` is the inputs' range."""
        delta = torch.zeros_like(inputs[:1])
        longest = self.bound * math.sqrt(delta.numel()) * unit.mean()
        for _ in range(self.steps):
            delta.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(inputs + delta), labels), delta)
            with torch.no_grad():
                delta = delta + longest * 2 / self.steps * slope / slope.norm().clamp_min(1e-12)
                delta = delta * (longest / delta.norm().clamp_min(1e-12)).clamp(max=1)
        return delta.detach()

    def _slopes(
        self, model: nn.Module, weights: list[nn.Parameter], inputs: Tensor, labels: Tensor, delta: Tensor
    ) -> list[Tensor]:
        """The gradient of the outer loss, that of δ* included."""
        delta = delta.clone().requires_grad_()
        loss = F.cross_entropy(model(inputs + delta), labels)
        direct = torch.autograd.grad(loss, [*weights, delta], create_graph=True)
        outer, by_delta = [slope.detach() for slope in direct[:-1]], direct[-1].detach()
        # One more step of the search, down −CE + 0.001·‖δ‖².
        after = delta + self.inner_lr * (direct[-1] - 0.002 * delta)
        v = by_delta
        for _ in range(self.steps):
            # The map contracts only where the loss is concave: without a limit, v could grow for ever.
            v = torch.autograd.grad(after, delta, v, retain_graph=True)[0] + by_delta
            v = v * (by_delta.norm() * self.steps / v.norm().clamp_min(1e-12)).clamp(max=1)
        implicit = torch.autograd.grad(after, weights, v, allow_unused=True, materialize_grads=True)
        return [one + two for one, two in zip(outer, implicit, strict=True)]
