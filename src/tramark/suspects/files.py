"""Suspects in files and behind URLs, opened by what they are.

A stranger's file is never allowed to run code of its own. Weights come from safetensors or from torch's restricted
loader; a `torch.export` archive is read by our own reader, which calls only tensor operators. A file that is not what
its name says is refused in one line.
"""

import copy
import importlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tramark.errors import SettingError, SuspectError, one_line
from tramark.fleet.travels import frozen_part
from tramark.suspects.base import Adapter
from tramark.suspects.conventions import Conventions, Prepare, conventions_of
from tramark.suspects.exported import load_exported
from tramark.suspects.http import HttpOptions
from tramark.suspects.hugging_face import hugging_face_suspect
from tramark.suspects.inference import V2Suspect
from tramark.suspects.json_api import JsonSuspect, JsonTemplate
from tramark.suspects.module import ModuleSuspect
from tramark.suspects.onnx import OnnxSuspect

Model = Callable[[], nn.Module] | nn.Module


def open_suspect(
    target: str | Path,
    *,
    conventions: Conventions | Prepare,
    model: Model | None = None,
    served: str | None = None,
    output: str | None = None,
    template: JsonTemplate | None = None,
    http: HttpOptions | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> Adapter:
    """The suspect at a path or URL.

    Parameters
    ----------
    target : a file (.safetensors, .pt, .pth, .pt2, .onnx), a Hugging Face model folder, or an http(s):// URL.
    conventions : how the suspect wants its inputs and names its labels. For a suspect that takes and answers what the
        federation's models do, just `keyring.source.prepare`.
    model : for files that hold weights only, the model they belong to: a module, of which a copy is used, or a function
        that makes one (see `factory`). Its frozen parameters may be missing from the file: they must be the
        federation's.
    served : for a server, the name of its model, if the URL does not say it.
    output : which of several outputs of an ONNX file or server is the answer; by default the first.
    template : how to ask a server that does not speak the Open Inference Protocol.
    http : timeouts, retries, rate limit, budget and token for a server.
    providers : onnxruntime's execution providers.
    """
    if isinstance(target, str) and "://" in target:
        if model is not None:
            raise SettingError("model is for files that hold weights: give the name of a server's model as served")
        if template is not None:
            return JsonSuspect(target, template, conventions=conventions, options=http)
        return V2Suspect(target, conventions=conventions, served=served, output=output, options=http)
    path = Path(target)
    if served is not None:
        raise SettingError(f"served names a server's model, but {path} is a file: say which model it holds (model)")
    if path.is_dir():
        return hugging_face_suspect(path, conventions_of(conventions))
    if not path.is_file():
        raise SuspectError(f"no file {path}")
    match path.suffix.lower():
        case ".safetensors" | ".pt" | ".pth":
            weights = read_weights(path)
            return ModuleSuspect(load_into(_built(model), weights, path), conventions)
        case ".pt2":
            exported = load_exported(path)
            if exported.batch is None:
                return ModuleSuspect(exported, conventions)
            return ModuleSuspect(exported, conventions, batch=exported.batch, exact=True)
        case ".onnx":
            return OnnxSuspect(path, conventions, output=output, providers=providers)
    raise SuspectError(f"{path} is no kind of file that can be asked: .safetensors, .pt, .pth, .pt2 or .onnx")


def factory(spec: str) -> Callable[[], nn.Module]:
    """The function that `package.module:function` names. It is imported, so it must be code that you trust.

    >>> factory("torch.nn:Identity")()
    Identity()
    """
    place, _, name = spec.partition(":")
    try:
        found: Callable[[], nn.Module] = getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingError(f"{spec!r} is not package.module:function ({one_line(error)})") from error
    if not callable(found):
        raise SettingError(f"{spec!r} is a {type(found).__name__}: a function that makes a model is wanted")
    return found


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a safetensors file, or in a state dict that torch's restricted loader accepts."""
    if path.suffix.lower() == ".safetensors":
        try:
            return load_file(path)
        except Exception as error:
            raise SuspectError(f"{path} is not a sound safetensors file ({one_line(error)})") from error
    if not zipfile.is_zipfile(path):
        raise SuspectError(
            f"{path} was not written by torch.save (1.6 or later): save a state dict, or use safetensors"
        )
    with zipfile.ZipFile(path) as archive:
        # torch.save never compresses, so a compressed entry is somebody's bomb.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise SuspectError(f"{path} has compressed entries, which torch.save does not write: it is refused")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SuspectError(
            f"{path} holds more than weights, or is damaged: save its state dict as safetensors"
        ) from error
    if isinstance(state, Mapping):
        state = next((state[name] for name in ("state_dict", "model_state_dict") if name in state), state)
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()) or not state:
        raise SuspectError(f"{path} is not a state dict (names and tensors)")
    return dict(state)


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
    module.load_state_dict(own | weights)
    return module


def _built(model: Model | None) -> nn.Module:
    if model is None:
        raise SuspectError("this file holds weights only: say which model they belong to (model)")
    if isinstance(model, nn.Module):
        # Another suspect may be opened with the same module.
        return copy.deepcopy(model)
    if not callable(model):
        raise SettingError(f"model is {one_line(repr(model))}: give a module, or a function that makes one")
    try:
        module = model()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SuspectError(f"the model cannot be built ({one_line(error)})") from error
    if not isinstance(module, nn.Module):
        raise SettingError(f"the model's function returns {type(module).__name__}: a torch module is wanted")
    return module
