"""Conversion: the thief exports the model to ONNX, as one would to serve it elsewhere. The suspect is what onnxruntime
answers: other kernels, and layers folded into one another."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from tramark.lab.attacks.base import Loot, copied
from tramark.lab.models.export import export_model
from tramark.suspects.loaded import LoadedSuspect
from tramark.suspects.onnx import load_onnx


@dataclass(frozen=True)
class Onnx:
    """To ONNX and back. It needs `pip install 'tramark[onnx]'`.

    Parameters
    ----------
    folder : where the file is kept; by default it is deleted once it is loaded.
    """

    folder: Path | None = None

    def __call__(self, model: nn.Module, loot: Loot) -> LoadedSuspect:
        if self.folder is not None:
            return _converted(model, loot, self.folder)
        with tempfile.TemporaryDirectory() as folder:
            return _converted(model, loot, Path(folder))


def _converted(model: nn.Module, loot: Loot, folder: Path) -> LoadedSuspect:
    path = folder / "model.onnx"
    sample = loot.prepare(loot.dataset.train_inputs[loot.indices[:2]])
    export_model(copied(model).cpu(), sample, path, "onnx")
    return LoadedSuspect(load_onnx(path), loot.prepare, path=path)
