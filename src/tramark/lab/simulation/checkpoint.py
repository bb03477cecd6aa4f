"""What a run keeps in files beside its vault: checkpoints, warm-ups and models."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from tramark.errors import CheckpointError
from tramark.lab.methods.base import Method
from tramark.server import TraMark
from tramark.vault.packing import pack, unpack


def dump(method: Method) -> bytes:
    """A server's whole state, marks included: not for everybody's eyes."""
    return pack(method.state_dict())


def restore(data: bytes, method: Method) -> None:
    """Bring a server to the state that `dump` gave."""
    try:
        method.load_state_dict(unpack(data))
    except Exception as error:  # a corrupt checkpoint can break in any part of the readers
        raise CheckpointError(f"this is not a checkpoint of this run: {_one_line(error)}") from error


def save_warm_up(path: Path, method: Method) -> None:
    """Write what a warm-up leads to: the base and the drift, neither of them secret."""
    state = method.state_dict()
    fleet = {name: t for name, t in state["fleet"].items() if name == "base" or name.startswith("buffer.")}
    write(path, pack({"round": state["round"], "fleet": fleet, "drift": state.get("drift", {})}))


def warm_start(path: Path, method: Method) -> None:
    """Begin where another run's warm-up ended: its base is taken up, and marks are made if the method makes any."""
    try:
        state = unpack(path.read_bytes())
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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
