"""Models written to files that other runtimes load: ONNX, and PyTorch's exported programs (pt2)."""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tramark.errors import SettingError, one_line

Form = Literal["onnx", "pt2"]


def export_model(model: nn.Module, example: Tensor, file: Path, form: Form) -> None:
    """Writes a model to a file that takes batches of any size.

    `example` is a batch of at least two inputs; the exporter follows it through the model. The model is exported in the
    mode that it is in: call `eval()` first. ONNX needs `pip install 'tramark[onnx]'`.
    """
    if form == "onnx" and (missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]):
        raise SettingError(f"writing ONNX needs {' and '.join(missing)}: pip install 'tramark[onnx]'")
    sizes = ({0: torch.export.Dim("batch", min=1)},)
    try:
        if form == "pt2":
            torch.export.save(torch.export.export(model, (example,), dynamic_shapes=sizes), file)
            return
        with _quiet():
            torch.onnx.export(
                model,
                (example,),
                file,
                input_names=["input"],
                output_names=["logits"],
                dynamic_shapes=sizes,
                external_data=False,
                verbose=False,
            )
        _forget_shapes(file)
    except OSError:
        raise
    except Exception as error:  # the exporter raises whatever the model's operators raise
        raise SettingError(f"torch cannot export {type(model).__name__} as {form} ({one_line(error)})") from error


def _forget_shapes(file: Path) -> None:
    """Removes the shapes of inner values. Runtimes infer them, and onnxruntime's quantiser fails on stale ones."""
    onnx: Any = importlib.import_module("onnx")
    model = onnx.load(file)
    del model.graph.value_info[:]
    onnx.save(model, file)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporter from printing remarks on optional packages and its own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
