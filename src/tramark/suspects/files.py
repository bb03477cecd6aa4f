"""Suspects in files and behind URLs, opened by what they are.

A stranger's file runs in a process of its own (`sandbox`), which has neither vault nor key. One exception: if the
caller gives the model of a file of weights as an object, which no other process can have, the weights are loaded into
it here.
"""

from pathlib import Path

from tramark.errors import SettingError, SuspectError
from tramark.suspects.base import Adapter
from tramark.suspects.conventions import Conventions, Prepare
from tramark.suspects.http import HttpOptions
from tramark.suspects.inference import V2Suspect
from tramark.suspects.json_api import JsonSuspect, JsonTemplate
from tramark.suspects.loaded import LoadedSuspect
from tramark.suspects.loading import PROGRAMS, WEIGHTS, load
from tramark.suspects.sandbox import Limits, Sandbox
from tramark.suspects.weights import Model, ModelName, built


def open_suspect(
    target: str | Path,
    *,
    conventions: Conventions | Prepare,
    model: Model | str | None = None,
    served: str | None = None,
    output: str | None = None,
    template: JsonTemplate | None = None,
    http: HttpOptions | None = None,
    limits: Limits | None = None,
) -> Adapter:
    """The suspect at a path or URL.

    Parameters
    ----------
    target : a file (.safetensors, .pt, .pth, .pt2, .onnx, .ts), a Hugging Face model folder, or an http(s):// URL.
    conventions : how the suspect wants its inputs and names its labels. For a suspect that takes and answers what the
        federation's models do, just `keyring.source.prepare`.
    model : for files that hold weights only, the model they belong to: the name of a function that makes it
        ("package.module:function", or a `ModelName` with what it is called with). A module, of which a copy is used, or
        a function can be given too; then the weights are loaded in this process. Its frozen parameters may be missing
        from the file: they must be the federation's.
    served : for a server, the name of its model, if the URL does not say it.
    output : which of several outputs of an ONNX file or server is the answer; by default the first.
    template : how to ask a server that does not speak the Open Inference Protocol.
    http : timeouts, retries, rate limit, budget and token for a server.
    limits : time and memory for a file.
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
    if not path.is_dir():
        if not path.is_file():
            raise SuspectError(f"no file {path}")
        if path.suffix.lower() not in PROGRAMS + WEIGHTS:
            raise SuspectError(
                f"{path} is no kind of file that can be asked: .safetensors, .pt, .pth, .pt2, .onnx, .ts or a folder"
            )
    if isinstance(model, str):
        model = ModelName(model)
    if model is not None and not isinstance(model, ModelName) and path.suffix.lower() in WEIGHTS:
        return LoadedSuspect(load(path, model=built(model)), conventions, path=path)
    name = model if isinstance(model, ModelName) else None
    sandbox = Sandbox(path, model=name, output=output, limits=limits or Limits())
    return LoadedSuspect(sandbox.loaded, conventions, path=path, confinement=sandbox.confinement)
