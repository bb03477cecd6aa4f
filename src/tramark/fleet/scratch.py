"""Run a model without leaving traces: its mode, its device, and a fleet's weights in it for a while."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import State


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block; after it each module is in the mode it was in.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    >>> with evaluating(model):
    ...     print(model.training, model[1].training)
    False False
    >>> model[1].training
    True
    """
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
    """A scratch model with the fleet's base, or other flat weights, loaded into it, in evaluation mode."""
    load_weights(model, fleet, fleet.base if weights is None else weights)
    with evaluating(model):
        yield model


def scratch_copy(model: nn.Module) -> nn.Module:
    """A copy of a model to run and change, in float32, in which marks are made whatever the model's precision is.

    >>> scratch_copy(nn.Linear(2, 2).half()).weight.dtype
    torch.float32
    """
    return copy.deepcopy(model).float()


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's weights."""
    return next(model.parameters()).device


@torch.no_grad()
def load_weights(model: nn.Module, fleet: Fleet, weights: Tensor) -> None:
    """Copy a flat vector of weights, and the fleet's buffers, into a model."""
    parameters = dict(model.named_parameters())
    state = model.state_dict()
    for name, slot in fleet.layout.tensors.items():
        parameters[name].copy_(slot.of(weights))
    for name, tensor in fleet.buffers.items():
        state[name].copy_(tensor)


def load_state(model: nn.Module, state: State) -> None:
    """Load a state dict into a scratch model, whose tensors take on its precisions."""
    for name, tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        if name in state:
            tensor.data = tensor.data.to(state[name].dtype)
    model.load_state_dict(dict(state))


@contextmanager
def seeded(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Torch's own generator, from which dropout and fresh layers draw: seeded from ours within the block, and as it was
    after it."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
