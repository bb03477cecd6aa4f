"""A server's state in one file: safetensors for the tensors, JSON in its header for the rest."""

import json
import os
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tramark.methods.base import Method
from tramark.server import TraMark


class CheckpointError(ValueError):
    """A file that is not a checkpoint of this run."""


def save_checkpoint(path: Path, method: Method) -> None:
    """Write a server's state at one stroke: a crash leaves the old file or the new one."""
    state = method.state_dict()
    plain = {name: value for name, value in state.items() if not _holds_tensors(value)}
    tensors = {
        f"{part}/{name}": tensor.contiguous()
        for part, value in state.items()
        if part not in plain
        for name, tensor in value.items()
    }
    write_tensors(path, tensors, metadata={"plain": json.dumps(plain)})


def load_checkpoint(path: Path, method: Method) -> None:
    """Bring a server to the state that `save_checkpoint` wrote."""
    try:
        method.load_state_dict(_read(path))
    except FileNotFoundError:
        raise CheckpointError(f"no checkpoint at {path}: there is nothing to resume") from None
    except Exception as error:  # a corrupt file can break in any part of the readers
        raise CheckpointError(f"{path} is not a checkpoint of this run: {_one_line(error)}") from error


def warm_start(path: Path, method: Method) -> None:
    """Begin where another run's warm-up ended: its base is taken up, and marks are made if the method makes any."""
    try:
        state = _read(path)
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


def _read(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        state: dict[str, Any] = json.loads(file.metadata()["plain"])
        for name in file.keys():  # noqa: SIM118 - a safetensors file is no dict
            part, _, rest = name.partition("/")
            state.setdefault(part, {})[rest] = file.get_tensor(name)
    return state


def write_tensors(path: Path, tensors: dict[str, Tensor], *, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that only its owner can read, at one stroke."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    save_file(tensors, temporary, metadata=metadata)
    temporary.chmod(0o600)
    os.replace(temporary, path)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, Tensor) for item in value.values())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
