"""Pruning: weights, or whole channels, that seem to matter least are set to zero.

By magnitude, w ← w·[|w| > the quantile of |w| at `share`], over each layer by itself (the Watermark-Robustness-Toolbox,
share 0.5) or over the whole model; the paper goes from 0.3 to 0.99. Structured, whole rows of a layer, by their norm.
Weights of convolutions and linear layers are pruned, and not their biases, except that a channel falls silent as a
whole.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied
from tramark.lab.attacks.training import channel_parameters, check_share, hidden_layers, layers


@dataclass(frozen=True)
class Prune:
    """Magnitude pruning.

    Parameters
    ----------
    share : of the weights, which are set to zero.
    scope : whether the smallest weights are sought in each layer by itself, or in all layers at once.
    """

    share: float = 0.5
    scope: Literal["global", "layer"] = "layer"

    def __post_init__(self) -> None:
        check_share(self.share)
        if self.scope not in ("global", "layer"):
            raise SettingError(f"scope is {self.scope!r}: say 'global' or 'layer'")

    @torch.no_grad()
    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        pruned = copied(model)
        weights = [layer.weight for layer in layers(pruned).values()]
        for group in [weights] if self.scope == "global" else [[weight] for weight in weights]:
            # In main memory: not every device knows how to rank a hundred million numbers.
            flat = torch.cat([weight.flatten().cpu() for weight in group])
            flat[smallest(flat.abs(), self.share)] = 0
            for weight, values in zip(group, flat.split([weight.numel() for weight in group]), strict=True):
                weight.copy_(values.view_as(weight))
        return pruned


@dataclass(frozen=True)
class PruneStructured:
    """The `share` of each layer's output channels or units with the smallest norm falls silent; not in the output
    layer, whose units are the labels."""

    share: float = 0.5

    def __post_init__(self) -> None:
        check_share(self.share)

    @torch.no_grad()
    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        pruned = copied(model)
        for name, layer in hidden_layers(pruned).items():
            silent = smallest(layer.weight.flatten(1).norm(dim=1).cpu(), self.share)
            for weight in channel_parameters(pruned, name):
                weight[silent.to(weight.device)] = 0
        return pruned


def smallest(values: Tensor, share: float) -> Tensor:
    """The places of this share of the values, the smallest ones."""
    return values.topk(round(share * len(values)), largest=False).indices
