"""A scratch model: one module that takes the weights of any client in turn, and evaluation mode for it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tramark.fleet.fleet import Fleet


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block. After it each submodule is in its former mode again, frozen ones included."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        # Not by eval(), which modules may override or refuse.
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def loaded(model: nn.Module, fleet: Fleet, weights: Tensor | None = None) -> Iterator[nn.Module]:
    """A scratch model with the fleet's base (or other weights) in it, in evaluation mode within the block."""
    with evaluating(model):
        load_weights(model, fleet, fleet.base if weights is None else weights)
        yield model


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
