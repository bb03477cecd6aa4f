"""Run a torch module on a batch of inputs, whatever it wraps its scores in."""

from itertools import chain

import torch
from torch import Tensor, nn

from tramark.errors import SettingError, SuspectError, one_line
from tramark.fleet.logits import find_logits, take_logits
from tramark.fleet.scratch import evaluating


def forward(module: nn.Module, inputs: Tensor) -> Tensor:
    """The module's scores or labels, computed on the device and in the precision of its weights.

    It runs in evaluation mode and without gradients, and is left as it was.
    """
    weights = next(chain(module.parameters(), module.buffers()), inputs)
    both = inputs.is_floating_point() and weights.is_floating_point()
    try:
        with evaluating(module), torch.no_grad():
            output = module(inputs.to(weights.device, weights.dtype if both else inputs.dtype))
    except SuspectError:
        raise
    except Exception as error:
        shape = tuple(inputs.shape)
        raise SuspectError(f"the suspect fails on inputs of shape {shape} ({one_line(error)})") from error
    try:
        return take_logits(output, find_logits(output))
    except SettingError:
        raise SuspectError(
            f"the suspect returns {type(output).__name__}: a tensor of scores or labels is wanted"
        ) from None
