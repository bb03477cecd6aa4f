"""CLP (channel Lipschitzness pruning): channels that react far more strongly than their layer's others are cut.

A channel's bound is the largest singular value of its kernel, as an in × positions matrix, times its batch norm's
|γ| / σ, if it has one. Channels above the layer's mean by u standard deviations fall silent. It needs no data; its
source takes u = 3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied
from tramark.lab.attacks.training import Layer, channel_parameters, hidden_layers


@dataclass(frozen=True)
class CLP:
    """Cut channels with an unusually large Lipschitz bound.

    Parameters
    ----------
    deviations : u, how many standard deviations above its layer's mean a channel's bound may be.
    """

    deviations: float = 3.0

    def __post_init__(self) -> None:
        if not self.deviations > 0:
            raise SettingError(f"deviations must be positive, not {self.deviations}")

    @torch.no_grad()
    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        pruned = copied(model)
        for name, layer in hidden_layers(pruned).items():
            weights = channel_parameters(pruned, name)
            bounds = self.bounds(layer, _norm_behind(pruned, weights))
            silent = bounds > bounds.mean() + self.deviations * bounds.std(correction=0)
            for weight in weights:
                weight[silent] = 0
        return pruned

    @torch.no_grad()
    def bounds(self, layer: Layer, norm: BatchNorm | None = None) -> Tensor:
        """The Lipschitz bound of each of a layer's channels."""
        bounds: Tensor = torch.linalg.matrix_norm(layer.weight.flatten(2) if layer.weight.dim() > 2
                                                  else layer.weight[:, :, None], ord=2)  # fmt: skip
        if norm is not None and norm.affine and norm.running_var is not None:
            bounds = bounds * (norm.weight / (norm.running_var + norm.eps).sqrt()).abs()
        return bounds


def _norm_behind(model: nn.Module, weights: list[nn.Parameter]) -> BatchNorm | None:
    """The batch norm that has one of these weights."""
    own = {id(weight) for weight in weights}
    norms = (module for module in model.modules() if isinstance(module, BatchNorm))
    return next((norm for norm in norms if id(norm.weight) in own), None)
