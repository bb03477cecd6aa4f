"""Suspects in files: weights beside a model's name, ONNX, `torch.export` archives, Hugging Face folders.

A stranger's file is never allowed to run code of its own. Weights come from safetensors, or from torch's
restricted loader; a `torch.export` archive is read by `tramark.tracing.exported`, which calls tensor
operators and nothing else; whatever is not what its name says is refused in one line.
"""

import importlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tramark.tracing.client import HttpOptions
from tramark.tracing.exported import load_exported
from tramark.tracing.http import JsonSuspect, JsonTemplate, V2Suspect
from tramark.tracing.suspect import (
    Adapter,
    Answers,
    Conventions,
    ModuleSuspect,
    Prepare,
    SuspectError,
    ask_in_batches,
    check_shape,
    conventions_of,
    one_line,
    padded,
    preview_inputs,
)

ONNX_DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
    "tensor(uint8)": torch.uint8,
    "tensor(int8)": torch.int8,
    "tensor(int32)": torch.int32,
    "tensor(int64)": torch.int64,
}


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
        own models do, just `keyring.triggers.prepare`.
    model : for weights, the model they belong to: a name that `tramark.models.build` knows (with
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
        return _hugging_face(path, conventions_of(conventions))
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
        from tramark.models import build

        return build(model, input_shape=input_shape, classes=classes)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SuspectError(f"the model {model!r} cannot be built ({one_line(error)})") from error


class OnnxSuspect:
    """An ONNX file, run by onnxruntime."""

    def __init__(
        self,
        path: Path,
        conventions: Conventions | Prepare,
        *,
        output: str | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        batch: int = 256,
    ) -> None:
        try:
            onnxruntime: Any = importlib.import_module("onnxruntime")
        except ImportError as error:
            raise SuspectError("an ONNX file needs onnxruntime: pip install 'tramark[onnx]'") from error
        options = onnxruntime.SessionOptions()
        # A file's mistakes are told in our error; onnxruntime need not print them too.
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
        except Exception as error:
            raise SuspectError(f"{path} is not a sound ONNX file ({one_line(error)})") from error
        self.path, self.conventions, self.batch = path, conventions_of(conventions), batch
        inputs, outputs = self._session.get_inputs(), [o.name for o in self._session.get_outputs()]
        if len(inputs) != 1 or inputs[0].type not in ONNX_DTYPES:
            wanted = ", ".join(f"{i.name}: {i.type}" for i in inputs)
            raise SuspectError(f"{path} wants {one_line(wanted) or 'nothing'}: one tensor of numbers can be given")
        if output is not None and output not in outputs:
            raise SuspectError(f"{path} has no output {output!r}: it has {one_line(', '.join(outputs))}")
        self._input, self._output = inputs[0], output or outputs[0]

    def __repr__(self) -> str:
        return f"OnnxSuspect({str(self.path)!r}, {self.conventions!r})"

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        fixed = self._input.shape[0] if self._input.shape else None
        return ask_in_batches(self._ask, raw, fixed if isinstance(fixed, int) else self.batch)

    def preview(self, raw: Tensor) -> str:
        """What the file's model would be fed."""
        return f"{self.path}, input {one_line(self._input.name)}\n{preview_inputs(self._inputs(raw))}"

    def _inputs(self, raw: Tensor) -> Tensor:
        inputs = self.conventions.inputs(raw, ONNX_DTYPES[self._input.type]).cpu()
        check_shape(inputs, self._input.shape)
        return inputs

    def _ask(self, raw: Tensor) -> Answers:
        inputs = self._inputs(raw)
        fixed = self._input.shape[0]
        if isinstance(fixed, int):
            inputs = padded(inputs, fixed)
        try:
            (said,) = self._session.run([self._output], {self._input.name: inputs.numpy()})
            said = torch.from_numpy(said) if said.dtype.kind in "fiub" else said.reshape(-1).tolist()
        except Exception as error:
            raise SuspectError(f"{self.path} fails on its input ({one_line(error)})") from error
        if isinstance(fixed, int) and len(said) == fixed:
            said = said[: len(raw)]
        return self.conventions.answers(said, len(raw))


def _hugging_face(folder: Path, conventions: Conventions) -> ModuleSuspect:
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise SuspectError(f"{folder} is not a Hugging Face model folder with a config.json and safetensors weights")
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise SuspectError("a Hugging Face folder needs transformers: pip install transformers") from error
    try:
        module: Any = transformers.AutoModelForImageClassification.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
        names: dict[int, str] = {int(index): str(name) for index, name in module.config.id2label.items()}
    except Exception as error:
        raise SuspectError(f"{folder} cannot be loaded as an image classifier ({one_line(error)})") from error
    if conventions.labels is not None:
        numbers = {index: conventions.answers([name], 1).labels.item() for index, name in names.items()}
        if any(number >= 0 for number in numbers.values()):
            conventions = replace(conventions, labels={index: int(number) for index, number in numbers.items()})
    return ModuleSuspect(module, conventions)
