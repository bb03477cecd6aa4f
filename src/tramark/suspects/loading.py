"""Models from a stranger's file, by what kind of file it is.

A file never runs code of its own choice: weights come from safetensors or torch's restricted loader, an exported
program is run by our own reader, ONNX by onnxruntime. A TorchScript program is code; it is loaded only where
`programs` says that nothing can come of it.
"""

from functools import partial
from pathlib import Path

import torch
from torch import nn

from tramark.errors import SuspectError, one_line
from tramark.suspects.base import About, Loaded
from tramark.suspects.exported import load_exported
from tramark.suspects.forward import forward
from tramark.suspects.hugging_face import load_folder
from tramark.suspects.onnx import load_onnx
from tramark.suspects.weights import is_torchscript, load_into, read_weights

PROGRAMS = (".pt2", ".onnx", ".ts", ".torchscript")
WEIGHTS = (".safetensors", ".pt", ".pth")


def load(path: Path, *, model: nn.Module | None = None, output: str | None = None, programs: bool = False) -> Loaded:
    """The model in a file or folder.

    Parameters
    ----------
    model : gets the weights of a file that holds weights only.
    output : which of several outputs of an ONNX file is the answer; by default the first.
    programs : whether TorchScript may be loaded: in a process that can do no harm.
    """
    if path.is_dir():
        return load_folder(path)
    match path.suffix.lower():
        case ".onnx":
            return load_onnx(path, output)
        case ".pt2":
            exported = load_exported(path)
            about = About() if exported.batch is None else About(batch=exported.batch, exact=True)
            return Loaded(partial(forward, exported), about)
        case ".ts" | ".torchscript":
            return _torchscript(path, programs)
        case ".pt" | ".pth" if is_torchscript(path):
            return _torchscript(path, programs)
    if model is None:
        raise SuspectError(f"{path} holds weights only: say which model they belong to (model)")
    return Loaded(partial(forward, load_into(model, read_weights(path), path)))


def _torchscript(path: Path, programs: bool) -> Loaded:
    if not is_torchscript(path):
        raise SuspectError(f"{path} is not a TorchScript program: a file of weights is called .pt or .safetensors")
    if not programs:
        raise SuspectError(
            f"{path} is a TorchScript program, which is code of its own: it is run only where the system can keep it "
            f"from files and network. Export it as ONNX"
        )
    try:
        script: nn.Module = torch.jit.load(path, map_location="cpu")
    except Exception as error:
        raise SuspectError(f"{path} is not a sound TorchScript program ({one_line(error)})") from error
    return Loaded(partial(forward, script))
