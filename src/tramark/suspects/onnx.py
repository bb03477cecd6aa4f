"""Suspects in ONNX files, run by onnxruntime. Such a file holds operators and weights, and no code of its own."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tramark.errors import SuspectError, one_line
from tramark.suspects.base import Answers, ask_in_batches, check_shape, fixed_batch, preview_inputs
from tramark.suspects.conventions import Conventions, Prepare, conventions_of

ONNX_DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
    "tensor(uint8)": torch.uint8,
    "tensor(int8)": torch.int8,
    "tensor(int32)": torch.int32,
    "tensor(int64)": torch.int64,
}


class OnnxSuspect:
    """An ONNX file, run by onnxruntime.

    Parameters
    ----------
    path : the file.
    conventions : how the model wants its inputs and names its labels, or just the `prepare` of a keyring's source.
    output : which of several outputs is the answer; by default the first.
    providers : onnxruntime's execution providers.
    batch : how many questions it is asked at a time, unless the file says how many it takes.
    """

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
        # Our error tells what is wrong with a file; onnxruntime need not print it too.
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
        self._fixed = fixed_batch(self._input.shape)

    def __repr__(self) -> str:
        return f"OnnxSuspect({str(self.path)!r}, {self.conventions!r})"

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        return ask_in_batches(self._ask, raw, self._fixed or self.batch, exact=self._fixed is not None)

    def preview(self, raw: Tensor) -> str:
        """What the file's model would be fed."""
        return f"{self.path}, input {one_line(self._input.name)}\n{preview_inputs(self._inputs(raw))}"

    def _inputs(self, raw: Tensor) -> Tensor:
        inputs = self.conventions.inputs(raw, ONNX_DTYPES[self._input.type]).cpu()
        check_shape(inputs, self._input.shape)
        return inputs

    def _ask(self, raw: Tensor) -> Answers:
        inputs = self._inputs(raw)
        try:
            (said,) = self._session.run([self._output], {self._input.name: inputs.numpy()})
            said = torch.from_numpy(said) if said.dtype.kind in "fiub" else said.reshape(-1).tolist()
        except Exception as error:
            raise SuspectError(f"{self.path} fails on its input ({one_line(error)})") from error
        return self.conventions.answers(said, len(raw))
