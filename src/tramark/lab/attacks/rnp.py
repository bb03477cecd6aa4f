"""RNP (reconstructive neuron pruning): the paper's adaptive attack.

Channels that a model uses for its task are told from those that it uses for something else by making it forget the
task. 1. *Unlearn*: maximise the cross-entropy of a few clean samples until hardly any is answered rightly.
2. *Recover*: with those weights frozen, learn a mask m ∈ [0, 1] a channel that brings the task back, min_m 0.2·CE. The
net is in training mode, as in the source: batch norm uses the batches' own statistics, and dropout drops.
3. *Prune* the model as it was where m ≤ t. With batch norm, masks lie on the norms' weights; without, on the rows of
convolutions and linear layers but the last; in a vision transformer on the units of its two-layer nets, the heads and
the norms' weights. What a mask scales is what is pruned: biases stay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from tramark.errors import SettingError
from tramark.fleet.scratch import device_of, seeded
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import batches, check_training, hidden_layers, some
from tramark.lab.models.vit import Attention, Block
from tramark.lab.simulation.client import accuracy

BATCH = 128

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(19))
"""Those that the source sweeps."""


Masks = dict[str, Tensor]
"""A mask for each tensor of weights that is masked: one number a channel."""


@dataclass(frozen=True)
class RNP:
    """Unlearn, recover, prune. `masks` does the first two, which do not depend on the threshold: `sweep` makes the
    models of several thresholds from one of them.

    Parameters
    ----------
    threshold : t; the source sweeps it from 0 to 0.9 by 0.05.
    masked : where the masks lie: "norm", "rows", or, by itself, the former if the model has batch norm.
    samples : how many clean samples of the thief's are used.
    unlearning_epochs, unlearning_lr : at most so many epochs, at a rate that falls to a tenth after 10 and after 20.
    forgotten : the accuracy at which unlearning ends; with more than ten classes, less in proportion.
    recovery_epochs, recovery_lr, alpha : for the masks, and the weight of their loss.
    """

    threshold: float = 0.5
    masked: Literal["auto", "norm", "rows"] = "auto"
    samples: int = 500
    unlearning_epochs: int = 20
    unlearning_lr: float = 0.01
    forgotten: float = 0.2
    recovery_epochs: int = 20
    recovery_lr: float = 0.2
    alpha: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.unlearning_epochs, self.unlearning_lr)
        check_training(self.recovery_epochs, self.recovery_lr)
        if not 0 <= self.threshold <= 1:
            raise SettingError(f"the threshold must lie between 0 and 1, like the masks, and not be {self.threshold}")
        if self.masked not in ("auto", "norm", "rows"):
            raise SettingError(f"masked is {self.masked!r}: say 'auto', 'norm' or 'rows'")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        return self.prune(model, self.masks(model, loot))

    def masks(self, model: nn.Module, loot: Loot) -> Masks:
        """How much each channel is needed to recover the task, from 0 to 1."""
        random = generator(self.seed)
        clean = some(loot, self.samples, random)
        return self._recover(self._unlearn(model, clean, random), clean, random)

    def sweep(
        self, model: nn.Module, loot: Loot, thresholds: Sequence[float] = THRESHOLDS
    ) -> Iterator[tuple[float, nn.Module]]:
        """Each threshold with the model that is pruned by it; by default from 0 to 0.9 by 0.05."""
        masks = self.masks(model, loot)
        for threshold in thresholds:
            yield threshold, replace(self, threshold=threshold).prune(model, masks)

    @torch.no_grad()
    def prune(self, model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the model without the channels whose mask is at or below the threshold."""
        pruned = copied(model)
        for name, mask in masks.items():
            weight = pruned.get_parameter(name)
            weight.mul_(_spread((mask > self.threshold).to(weight), weight))
        return pruned

    def _unlearn(self, model: nn.Module, clean: Loot, random: torch.Generator) -> nn.Module:
        forgetful = copied(model)
        optimiser = torch.optim.SGD(forgetful.parameters(), lr=self.unlearning_lr, momentum=0.9, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones=[10, 20], gamma=0.1)
        device, enough = device_of(forgetful), self.forgotten * min(1.0, 10 / clean.classes)
        with seeded(random, device):
            for _ in range(self.unlearning_epochs):
                forgetful.train()
                for inputs, labels in batches(clean, random, device, size=BATCH, whole=True):
                    optimiser.zero_grad()
                    (-F.cross_entropy(forgetful(inputs), labels)).backward()
                    # This loss has no lower bound: a step of any length would seem worth it.
                    nn.utils.clip_grad_norm_(forgetful.parameters(), 20.0)
                    optimiser.step()
                schedule.step()
                if accuracy(forgetful, clean.inputs, clean.labels, prepare=clean.prepare) <= enough:
                    break
        return forgetful.eval()

    def _recover(self, model: nn.Module, clean: Loot, random: torch.Generator) -> Masks:
        device = device_of(model)
        weights = {name: model.get_parameter(name).detach() for name in self._places(model)}
        masks = {name: torch.ones(count, device=device).requires_grad_() for name, count in self._places(model).items()}
        optimiser = torch.optim.SGD(masks.values(), lr=self.recovery_lr, momentum=0.9)
        model.train()
        with seeded(random, device):
            for _ in range(self.recovery_epochs):
                for inputs, labels in batches(clean, random, device, size=BATCH, whole=True):
                    masked = {name: weight * _spread(masks[name], weight) for name, weight in weights.items()}
                    loss = self.alpha * F.cross_entropy(functional_call(model, masked, (inputs,)), labels)
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                    with torch.no_grad():
                        for mask in masks.values():
                            mask.clamp_(0, 1)
        return {name: mask.detach() for name, mask in masks.items()}

    def _places(self, model: nn.Module) -> dict[str, int]:
        """The tensors that are masked, and how many numbers each one's mask has."""
        modules = dict(model.named_modules())
        norms = {
            f"{name}.weight": norm.num_features
            for name, norm in modules.items()
            if isinstance(norm, BatchNorm) and norm.affine
        }
        if self.masked == "norm" and not norms:
            raise SettingError(f"{type(model).__name__} has no batch norm to lay masks on: use masked='rows'")
        if norms and self.masked != "rows":
            return norms
        if any(isinstance(module, Attention) for module in modules.values()):
            return _transformer(modules)
        return {f"{name}.weight": len(layer.weight) for name, layer in hidden_layers(model).items()}


def _transformer(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    places = {}
    for name, module in modules.items():
        if isinstance(module, nn.LayerNorm):
            places[f"{name}.weight"] = module.weight.numel()
        elif isinstance(module, Block):
            places[f"{name}.fc1.weight"] = module.fc1.out_features
        elif isinstance(module, Attention):
            places[f"{name}.out.weight"] = module.heads
    return places


def _spread(mask: Tensor, weight: Tensor) -> Tensor:
    """A mask in a shape that multiplies a tensor of weights: a number a row or, for heads, a number for all columns
    that a head feeds."""
    if len(mask) != len(weight):
        return mask.repeat_interleave(weight.shape[1] // len(mask))
    return mask.view(-1, *[1] * (weight.dim() - 1))
