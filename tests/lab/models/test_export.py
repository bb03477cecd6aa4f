"""What other tools must be able to do with exported models."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tramark.lab.models import build
from tramark.lab.models.export import export_model
from tramark.suspects.onnx import load_onnx


def test_onnxruntime_quantises_what_we_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    quantization: Any = pytest.importorskip("onnxruntime.quantization")
    model = build("small-cnn", input_shape=(1, 28, 28), classes=10, seed=1).eval()
    export_model(model, torch.zeros(2, 1, 28, 28), tmp_path / "m.onnx", "onnx")
    quantization.quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx")
    inputs = torch.rand(8, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    plain, small = (load_onnx(tmp_path / name).run(inputs) for name in ("m.onnx", "q.onnx"))
    assert isinstance(plain, torch.Tensor)
    assert isinstance(small, torch.Tensor)
    assert torch.allclose(plain, model(inputs), atol=1e-4)
    assert torch.nn.functional.cosine_similarity(plain, small).min() > 0.9
