"""Conversion: the model exported to ONNX, as one would to serve it elsewhere. What turns up is what onnxruntime
answers: other kernels, and layers folded into one another."""

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from tramark.errors import one_line
from tramark.lab.attacks.base import Loot, copied
from tramark.suspects.onnx import OnnxSuspect

NEEDED = ("onnx", "onnxruntime", "onnxscript")


@dataclass(frozen=True)
class Onnx:
    """To ONNX and back. It needs `pip install 'tramark[onnx]'`.

    Parameters
    ----------
    folder : where the file is kept; by default nowhere, once it is loaded.
    """

    folder: Path | None = None

    def __call__(self, model: nn.Module, loot: Loot) -> OnnxSuspect:
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise ImportError(f"exporting to ONNX needs {', '.join(missing)}: pip install 'tramark[onnx]'")
        if self.folder is not None:
            return _converted(model, loot, self.folder)
        with tempfile.TemporaryDirectory() as folder:
            return _converted(model, loot, Path(folder))


def _converted(model: nn.Module, loot: Loot, folder: Path) -> OnnxSuspect:
    path = folder / "model.onnx"
    sample = loot.prepare(loot.dataset.train_inputs[loot.indices[:2]])
    batch = ({0: torch.export.Dim("batch")},)
    try:
        with _quiet():
            torch.onnx.export(
                copied(model).cpu(), (sample,), path, dynamic_shapes=batch, external_data=False, verbose=False
            )
    except Exception as error:  # the exporter raises whatever the model's operators raise
        raise ValueError(f"torch cannot export {type(model).__name__} to ONNX ({one_line(error)})") from error
    return OnnxSuspect(path, loot.prepare)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter remarks on packages that are not there and on its own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
