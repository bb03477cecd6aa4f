"""A server's state as bytes: safetensors, with the few plain values as JSON in a tensor of their own."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from tramark.methods.base import Method
from tramark.server import TraMark


class CheckpointError(ValueError):
    """Something that is not a checkpoint of this run."""


def dump(method: Method) -> bytes:
    """A server's whole state, marks included: not for everybody's eyes."""
    return _pack(method.state_dict())


def restore(data: bytes, method: Method) -> None:
    """Bring a server to the state that `dump` gave."""
    try:
        method.load_state_dict(_unpack(data))
    except Exception as error:  # a corrupt checkpoint can break in any part of the readers
        raise CheckpointError(f"this is not a checkpoint of this run: {_one_line(error)}") from error


def save_warm_up(path: Path, method: Method) -> None:
    """Write what a warm-up leads to: the base and the drift, neither of them secret."""
    state = method.state_dict()
    fleet = {name: t for name, t in state["fleet"].items() if name == "base" or name.startswith("buffer.")}
    write(path, _pack({"round": state["round"], "fleet": fleet, "drift": state.get("drift", {})}))


def warm_start(path: Path, method: Method) -> None:
    """Begin where another run's warm-up ended: its base is taken up, and marks are made if the method makes any."""
    try:
        state = _unpack(path.read_bytes())
        method.fleet.load_base(state["fleet"])
        method.round = int(state["round"])
        if isinstance(method, TraMark):
            method.drift.load_state_dict(state["drift"])
    except FileNotFoundError:
        raise CheckpointError(f"no warm-up to start from at {path}") from None
    except Exception as error:
        raise CheckpointError(f"cannot start from {path}: {_one_line(error)}") from error
    if isinstance(method, TraMark):
        method.mark()


def write_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a model as safetensors."""
    write(path, save({name: tensor.contiguous().clone() for name, tensor in state.items()}))


def write(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, at one stroke: a crash leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    temporary.write_bytes(data)
    temporary.chmod(0o600)
    os.replace(temporary, path)


def _pack(state: Mapping[str, Any]) -> bytes:
    plain = {name: value for name, value in state.items() if not _holds_tensors(value)}
    tensors = {
        f"{part}/{name}": tensor.cpu().contiguous()
        for part, value in state.items()
        if part not in plain
        for name, tensor in value.items()
    }
    return save(tensors | {"plain": torch.frombuffer(bytearray(json.dumps(plain).encode()), dtype=torch.uint8)})


def _unpack(data: bytes) -> dict[str, Any]:
    tensors = load(data)
    state: dict[str, Any] = json.loads(bytes(tensors.pop("plain").tolist()))
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        state.setdefault(part, {})[rest] = tensor
    return state


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, Tensor) for item in value.values())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
