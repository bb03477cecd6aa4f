"""Files that hold weights only, and the models that they belong to.

A stranger's weights come from safetensors or from torch's restricted loader, which never run code of the file. The
model is code that the user trusts: a module, a function, or the name of one (`ModelName`), which alone can be passed
on to another process.
"""

import copy
import importlib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tramark.errors import SettingError, SuspectError, one_line
from tramark.fleet.travels import frozen_part

NESTED = ("state_dict", "model_state_dict", "model")
"""Under these names, checkpoints keep a model's state dict beside other things."""


@dataclass(frozen=True)
class ModelName:
    """The name of a function that makes a model, and what it is called with.

    >>> ModelName("torch.nn:Linear", {"in_features": 2, "out_features": 3}).build()
    Linear(in_features=2, out_features=3, bias=True)
    """

    function: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """The model. The function is imported, so it must be code that you trust."""
        # JSON has lists, not tuples.
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()}
        make = factory(self.function)
        return built(lambda: make(**options))


Model = ModelName | Callable[[], nn.Module] | nn.Module


def factory(spec: str) -> Callable[..., nn.Module]:
    """The function that `package.module:function` names. It is imported, so it must be code that you trust.

    >>> factory("torch.nn:Identity")()
    Identity()
    """
    place, _, name = spec.partition(":")
    try:
        found: Callable[..., nn.Module] = getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingError(f"{spec!r} is not package.module:function ({one_line(error)})") from error
    if not callable(found):
        raise SettingError(f"{spec!r} is a {type(found).__name__}: a function that makes a model is wanted")
    return found


def built(model: Callable[[], nn.Module] | nn.Module) -> nn.Module:
    """The model that a function makes, or a copy of a module."""
    if isinstance(model, nn.Module):
        # Another suspect may be opened with the same module.
        return copy.deepcopy(model)
    if not callable(model):
        raise SettingError(f"model is {one_line(repr(model))}: give a module, or a function that makes one")
    try:
        module = model()
    except Exception as error:
        raise SuspectError(f"the model cannot be built ({one_line(error)})") from error
    if not isinstance(module, nn.Module):
        raise SettingError(f"the model's function returns {type(module).__name__}: a torch module is wanted")
    return module


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a safetensors file, or in a state dict that torch's restricted loader accepts."""
    if path.suffix.lower() == ".safetensors":
        try:
            return load_file(path)
        except Exception as error:
            raise SuspectError(f"{path} is not a sound safetensors file ({one_line(error)})") from error
    if is_torchscript(path):
        raise SuspectError(f"{path} is a TorchScript program, which brings its own model: open it without one")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SuspectError(
            f"{path} holds more than weights, or is damaged: save its state dict as safetensors"
        ) from error
    if isinstance(state, Mapping):
        state = next((state[name] for name in NESTED if isinstance(state.get(name), Mapping)), state)
    if not isinstance(state, Mapping) or not state or not all(isinstance(name, str) for name in state):
        raise SuspectError(f"{path} is not a state dict (names and tensors)")
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise SuspectError(
                f"{path} is not a state dict: {one_line(repr(name), 60)} is a {type(tensor).__name__}, not a tensor"
            )
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
            kind = "meta" if tensor.is_meta else "quantised" if tensor.is_quantized else "sparse or nested"
            raise SuspectError(f"{path} has {one_line(repr(name), 60)} as a {kind} tensor: plain tensors can be loaded")
    return dict(state)


def is_torchscript(path: Path) -> bool:
    """Whether a file that torch wrote is a TorchScript program. Other kinds of files, and bombs, are refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        raise SuspectError(
            f"{path} was not written by torch.save (1.6 or later): save a state dict, or use safetensors"
        ) from None
    names = {entry.filename.partition("/")[2] for entry in entries}
    script = "constants.pkl" in names and any(name.startswith("code/") for name in names)
    # torch never compresses weights, so a compressed entry is somebody's bomb. Of a program it compresses the text.
    if any(e.compress_type != zipfile.ZIP_STORED and not (script and "/code/" in e.filename) for e in entries):
        raise SuspectError(f"{path} has compressed entries, which torch.save does not write: it is refused")
    return script


def load_into(module: nn.Module, weights: dict[str, Tensor], path: Path) -> nn.Module:
    """The module with these weights loaded into it. All of them must fit.

    A file may hold only the part of a model that travelled in the federation: the module's frozen part may be missing
    from it, and stays as it is in the module.
    """
    nn.modules.utils.consume_prefix_in_state_dict_if_present(weights, "module.")
    own = module.state_dict()
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    misfits = [n for n in sorted(own.keys() & weights.keys()) if own[n].shape != weights[n].shape]
    names = [*missing, *unknown, *misfits]
    if names and (unknown or misfits or not frozen_part(module).issuperset(missing)):
        hint = ". A file with a part of the weights needs a model whose others are frozen (requires_grad=False) and set"
        raise SuspectError(
            f"the weights in {path} are not those of this model: {len(missing)} are missing, {len(unknown)} "
            f"unknown and {len(misfits)} of another shape, such as {one_line(repr(names[0]))}"
            + (hint if missing and not unknown and not misfits else "")
        )
    try:
        module.load_state_dict(own | weights)
    except Exception as error:
        raise SuspectError(f"the weights in {path} cannot be loaded into this model ({one_line(error)})") from error
    return module
