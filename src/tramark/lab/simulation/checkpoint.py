"""What a run keeps in files for other runs and programs: warm-ups and models."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from tramark.errors import CheckpointError, one_line
from tramark.lab.methods.base import Method
from tramark.vault.files import replace_file
from tramark.vault.packing import pack, unpack


def save_warm_up(path: Path, method: Method) -> None:
    """Write the result of a warm-up: the base, the drift and a few updates. No key is among them."""
    state = method.state_dict()
    fleet = {name: t for name, t in state["fleet"].items() if name == "base" or name.startswith("buffer.")}
    warm = {"round": state["round"], "fleet": fleet, "drift": state.get("drift", {})}
    replace_file(path, pack(warm | method.warm_up()))


def warm_start(path: Path, method: Method) -> None:
    """Begin where another run's warm-up ended: take up its base, and make marks if the method makes any."""
    _start(path, method.warm_start)


def begin_with(path: Path, method: Method) -> None:
    """Begin within another run's warm-up: take up its base, and play the rest of the warm-up."""

    def take_up(state: Mapping[str, Any]) -> None:
        method.fleet.load_base(state["fleet"])
        method.round = int(state["round"])

    _start(path, take_up)


def _start(path: Path, take_up: Callable[[Mapping[str, Any]], None]) -> None:
    try:
        take_up(unpack(path.read_bytes()))
    except FileNotFoundError:
        raise CheckpointError(f"no warm-up to start from at {path}") from None
    except Exception as error:  # a damaged file can break any part of the readers
        raise CheckpointError(f"cannot start from {path}: {one_line(error)}") from error


def write_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a model as safetensors, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, save({name: tensor.contiguous().clone() for name, tensor in state.items()}))
