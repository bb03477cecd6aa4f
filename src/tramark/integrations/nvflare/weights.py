"""Models in FLARE's messages: arrays by name, in numpy or torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, from_shareable
from nvflare.apis.shareable import Shareable
from torch import Tensor

from tramark.fleet.layout import State


def dxo_in(shareable: Shareable) -> "DXO | None":
    """The data exchange object in a message, or None if it has none that can be read."""
    try:
        return from_shareable(shareable)
    except Exception:  # whatever a client may send
        return None


def state_of(params: Mapping[str, Any]) -> State:
    """Named arrays as a state dict. What is no array raises `TypeError`."""
    return {name: _tensor(value) for name, value in params.items()}


def like(params: Mapping[str, Any], state: State) -> dict[str, Any]:
    """The tensors of a state dict under these names, each in the library of the array that it replaces."""
    return {n: state[n] if isinstance(value, Tensor) else state[n].numpy() for n, value in params.items()}


def _tensor(value: Any) -> Tensor:
    # With `enable_tensor_disk_offload` arrays are read from the disk when they are wanted.
    value = value.materialize() if hasattr(value, "materialize") else value
    if isinstance(value, Tensor):
        return value.detach()
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"{type(value).__name__} is no array")
    # torch has no arrays that cannot be written to.
    return torch.from_numpy(np.require(value, requirements=["W"]))
