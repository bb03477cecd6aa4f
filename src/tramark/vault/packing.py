"""A server's state as bytes: safetensors, with the few plain values as JSON in a tensor of their own."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

_PLAIN = "plain"


def pack(state: Mapping[str, Any]) -> bytes:
    """The bytes of a dict whose values are plain or dicts of tensors.

    >>> state = {"round": 3, "fleet": {"base": torch.zeros(2)}}
    >>> unpack(pack(state))
    {'round': 3, 'fleet': {'base': tensor([0., 0.])}}
    """
    plain = {name: value for name, value in state.items() if not _holds_tensors(value)}
    tensors = {
        f"{part}/{name}": tensor.cpu().contiguous()
        for part, value in state.items()
        if part not in plain
        for name, tensor in value.items()
    }
    return save(tensors | {_PLAIN: torch.frombuffer(bytearray(json.dumps(plain).encode()), dtype=torch.uint8)})


def unpack(data: bytes) -> dict[str, Any]:
    """What `pack` was given."""
    tensors = load(data)
    state: dict[str, Any] = json.loads(bytes(tensors.pop(_PLAIN).tolist()))
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        state.setdefault(part, {})[rest] = tensor
    return state


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(item, Tensor) for item in value.values())
