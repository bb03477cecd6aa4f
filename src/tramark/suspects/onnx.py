"""Models in ONNX files, run by onnxruntime. Such a file holds operators and weights, and no code of its own."""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tramark.errors import SuspectError, one_line
from tramark.suspects.base import About, Loaded, fixed_batch

ONNX_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


def load_onnx(path: Path, output: str | None = None) -> Loaded:
    """The model in an ONNX file; `output` says which of several outputs is the answer, by default the first."""
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise SuspectError("an ONNX file needs onnxruntime: pip install 'tramark[onnx]'") from error
    options = onnxruntime.SessionOptions()
    # Our error tells what is wrong with a file; onnxruntime need not print it too.
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise SuspectError(f"{path} is not a sound ONNX file ({one_line(error)})") from error
    inputs, outputs = session.get_inputs(), [o.name for o in session.get_outputs()]
    if len(inputs) != 1 or inputs[0].type not in ONNX_DTYPES:
        wanted = ", ".join(f"{i.name}: {i.type}" for i in inputs)
        raise SuspectError(f"{path} wants {one_line(wanted) or 'nothing'}: one tensor of numbers can be given")
    if output is not None and output not in outputs:
        raise SuspectError(f"{path} has no output {output!r}: it has {one_line(', '.join(outputs))}")
    given, asked = inputs[0], output or outputs[0]

    def run(batch: Tensor) -> Tensor | list[Any]:
        try:
            (said,) = session.run([asked], {given.name: batch.numpy()})
            return torch.from_numpy(said) if said.dtype.kind in "fiub" else list(said.reshape(-1).tolist())
        except Exception as error:
            raise SuspectError(f"{path} fails on its input ({one_line(error)})") from error

    fixed = fixed_batch(given.shape)
    shape = tuple(size if isinstance(size, int) else None for size in given.shape)
    return Loaded(run, About(ONNX_DTYPES[given.type], shape, fixed or About.batch, exact=fixed is not None))
