"""Suspects in files: weights beside a model's name, ONNX, `torch.export` archives, Hugging Face folders.

A stranger's file is never allowed to run code of its own. Weights come from safetensors, or from torch's
restricted loader; a `torch.export` archive is read by `tramark.tracing.exported`, which calls tensor
operators and nothing else; whatever is not what its name says is refused in one line.
"""

import importlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tramark.errors import SuspectError, one_line
from tramark.suspects.base import Adapter
from tramark.suspects.conventions import Conventions, Prepare, conventions_of
from tramark.suspects.exported import load_exported
from tramark.suspects.http import HttpOptions
from tramark.suspects.hugging_face import hugging_face_suspect
from tramark.suspects.inference import V2Suspect
from tramark.suspects.json_api import JsonSuspect, JsonTemplate
from tramark.suspects.module import ModuleSuspect
from tramark.suspects.onnx import OnnxSuspect


def open_suspect(
    target: str | Path,
    *,
    conventions: Conventions | Prepare,
    model: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    output: str | None = None,
    template: JsonTemplate | None = None,
    http: HttpOptions | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> Adapter:
    """The suspect at a path or URL.

    Parameters
    ----------
    target : a file (.safetensors, .pt, .pth, .pt2, .onnx), a Hugging Face model folder, or an http(s):// URL.
    conventions : how the suspect wants its inputs and names its labels; or, if it is fed and answers as our
        own models do, just `keyring.source.prepare`.
    model : for weights, the model they belong to: a name that `tramark.lab.models.build` knows (with
        `input_shape` and `classes`), or `package.module:factory`. For a server, the name of its model.
    output : which of several outputs of an ONNX file or server is the answer; the first, unless told.
    template : for a server that does not speak the Open Inference Protocol, how it is asked.
    http : timeouts, retries, rate limit, budget and token for a server.
    providers : onnxruntime's execution providers.
    """
    if isinstance(target, str) and "://" in target:
        if template is not None:
            return JsonSuspect(target, template, conventions=conventions, options=http)
        return V2Suspect(target, conventions=conventions, model=model, output=output, options=http)
    path = Path(target)
    if path.is_dir():
        return hugging_face_suspect(path, conventions_of(conventions))
    if not path.is_file():
        raise SuspectError(f"no file {path}")
    match path.suffix.lower():
        case ".safetensors" | ".pt" | ".pth":
            weights = read_weights(path)
            return ModuleSuspect(load_into(_build(model, input_shape, classes), weights, path), conventions)
        case ".pt2":
            return ModuleSuspect(load_exported(path), conventions)
        case ".onnx":
            return OnnxSuspect(path, conventions, output=output, providers=providers)
    raise SuspectError(f"{path} is no kind of file that can be asked: .safetensors, .pt, .pth, .pt2 or .onnx")


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
    """The module with these weights, every one of which must fit."""
    nn.modules.utils.consume_prefix_in_state_dict_if_present(weights, "module.")
    own = module.state_dict()
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    misfits = [n for n in sorted(own.keys() & weights.keys()) if own[n].shape != weights[n].shape]
    if names := [*missing, *unknown, *misfits]:
        raise SuspectError(
            f"the weights in {path} are not those of this model: {len(missing)} are missing, {len(unknown)} "
            f"unknown and {len(misfits)} of another shape, such as {one_line(repr(names[0]))}"
        )
    module.load_state_dict(weights)
    return module


def _build(model: str | None, input_shape: tuple[int, ...] | None, classes: int | None) -> nn.Module:
    if model is None:
        raise SuspectError(
            "these are weights alone: say whose they are (model), by a name or as package.module:factory"
        )
    try:
        if ":" in model:
            place, _, factory = model.partition(":")
            module = getattr(importlib.import_module(place), factory)()
            if not isinstance(module, nn.Module):
                raise SuspectError(f"{model} makes {type(module).__name__}: a torch module is wanted")
            return module
        if input_shape is None or classes is None:
            raise SuspectError(
                f"to build a {model}, say what it is fed and how many labels it knows (input_shape, classes)"
            )
        from tramark.lab.models import build

        return build(model, input_shape=input_shape, classes=classes)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SuspectError(f"the model {model!r} cannot be built ({one_line(error)})") from error
