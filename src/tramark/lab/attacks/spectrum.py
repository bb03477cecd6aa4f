"""Reversal of an edit by its spectrum: directions at one end of a layer's singular values are taken out.

Where a layer was edited in closed form, the edit can show in the singular directions of its matrix W = U S Vᵀ. The
thief takes out those with the largest or with the smallest values, W ← W − U_k S_k V_kᵀ, and trains nothing. It does
not know the layer: by default it takes the hidden linear layer with the most weights, where an edit has most room, or
the last convolution of a net that has none.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied
from tramark.lab.attacks.training import hidden_layers, layers

End = Literal["top", "bottom"]


@dataclass(frozen=True)
class ReverseEdit:
    """Take singular directions out of a layer.

    Parameters
    ----------
    rank : how many.
    end : those with the largest values ("top"), or with the smallest ("bottom").
    layer : its name, if it is not to be chosen.
    """

    rank: int = 16
    end: End = "bottom"
    layer: str | None = None

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise SettingError(f"rank is {self.rank}: it must be at least 1")
        if self.end not in ("top", "bottom"):
            raise SettingError(f"end is {self.end!r}: say 'top' or 'bottom'")

    @torch.no_grad()
    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        reversed_ = copied(model)
        weight = layers(reversed_)[self.chosen(reversed_)].weight
        left, values, right = torch.linalg.svd(weight.flatten(1), full_matrices=False)
        count = min(self.rank, len(values))
        out = slice(0, count) if self.end == "top" else slice(len(values) - count, len(values))
        weight -= ((left[:, out] * values[out]) @ right[out]).view_as(weight)
        return reversed_

    def chosen(self, model: nn.Module) -> str:
        """The name of the layer."""
        hidden = hidden_layers(model)
        if self.layer is not None:
            if self.layer not in layers(model):
                raise SettingError(f"no layer {self.layer!r} of weights: there must be one of this name")
            return self.layer
        linear = {name: layer for name, layer in hidden.items() if isinstance(layer, nn.Linear)}
        if not hidden:
            raise SettingError("the model has no hidden layer whose spectrum could show an edit")
        return max(linear, key=lambda name: linear[name].weight.numel()) if linear else next(reversed(hidden))
