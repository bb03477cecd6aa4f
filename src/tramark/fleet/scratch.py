"""fleet.scratch"""

import torch
from torch import Tensor, nn

from tramark.fleet.fleet import Fleet


class loaded:  # noqa: N801 - reads as a phrase: with loaded(model, fleet)
    """A scratch model with the fleet's base (or other weights) in it, in evaluation mode while it lasts."""

    def __init__(self, model: nn.Module, fleet: Fleet, weights: Tensor | None = None) -> None:
        self._model, self._fleet = model, fleet
        self._weights = fleet.base if weights is None else weights

    def __enter__(self) -> nn.Module:
        self._was_training = self._model.training
        self._model.eval()
        load_weights(self._model, self._fleet, self._weights)
        return self._model

    def __exit__(self, *_: object) -> None:
        self._model.train(self._was_training)


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@torch.no_grad()
def load_weights(model: nn.Module, fleet: Fleet, weights: Tensor) -> None:
    parameters = dict(model.named_parameters())
    state = model.state_dict()
    for name, slot in fleet.layout.tensors.items():
        parameters[name].copy_(slot.of(weights))
    for name, tensor in fleet.buffers.items():
        state[name].copy_(tensor)
