"""Fine-pruning: the channels of one layer that clean data leaves idle are cut, and the rest is trained again.

What a mark needs and the task does not should sit in channels that the task's inputs hardly excite. The
Watermark-Robustness-Toolbox cuts 0.96 of one layer and trains for 10 epochs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.prune import smallest
from tramark.lab.attacks.training import (
    Layer,
    channel_parameters,
    check_share,
    check_training,
    hidden_layers,
    layers,
    some,
    train,
)
from tramark.lab.simulation.client import predict


@dataclass(frozen=True)
class FinePrune:
    """Cut a layer's least active channels, then train; what was cut stays so.

    Parameters
    ----------
    share : of the layer's channels, which are cut.
    layer : its name; by default the last convolution, or the last hidden layer of a net that has none.
    samples : how many of the thief's samples the activity is measured on.
    """

    share: float = 0.96
    layer: str | None = None
    epochs: int = 10
    lr: float = 0.01
    samples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_share(self.share)
        check_training(self.epochs, self.lr, least=0)

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        pruned, random = copied(model), generator(self.seed)
        name = self._layer(pruned)
        weights = channel_parameters(pruned, name)
        silent = smallest(self._activity(pruned, name, some(loot, self.samples, random)), self.share)
        silent = silent.to(weights[0].device)
        with torch.no_grad():
            for weight in weights:
                weight[silent] = 0
        # Without a gradient a weight of zero stays zero: decay and momentum leave it there.
        handles = [
            weight.register_hook(lambda gradient: gradient.index_fill(0, silent, 0))
            for weight in weights
            if weight.requires_grad
        ]
        train(pruned, loot, epochs=self.epochs, lr=self.lr, generator=random)
        for handle in handles:
            handle.remove()
        return pruned

    def _layer(self, model: nn.Module) -> str:
        if self.layer is not None:
            if self.layer not in layers(model):
                raise SettingError(f"no layer {self.layer!r} to prune; this model has {', '.join(layers(model))}")
            return self.layer
        hidden = hidden_layers(model)
        convolutions = [name for name, layer in hidden.items() if not isinstance(layer, nn.Linear)]
        if not hidden:
            raise SettingError(f"{type(model).__name__} has no hidden layer whose channels could be pruned")
        return convolutions[-1] if convolutions else list(hidden)[-1]

    def _activity(self, model: nn.Module, name: str, loot: Loot) -> Tensor:
        """The mean of each channel's positive part, which is what a ReLU lets through, behind the layer's norm."""
        layer: Layer = layers(model)[name]
        last = channel_parameters(model, name)[-1]
        (watched,) = [m for m in model.modules() if any(p is last for p in m.parameters(recurse=False))]
        seen: list[Tensor] = []

        def watch(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            by_channel = output.movedim(-1 if isinstance(layer, nn.Linear) else 1, 0).flatten(1)
            seen.append(by_channel.clamp_min(0).sum(1).cpu())

        handle = watched.register_forward_hook(watch)
        try:
            predict(model, loot.inputs, prepare=loot.prepare)
        finally:
            handle.remove()
        return torch.stack(seen).sum(0)
