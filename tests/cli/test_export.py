"""`tramark export`: what it writes is traced to the client."""

import json
from pathlib import Path

import pytest
from commands import Shell


@pytest.mark.parametrize("form", ["safetensors", "pt2", "onnx"])
def test_exports_are_traced(federation: Path, tramark: Shell, tmp_path: Path, form: str) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    file = tmp_path / f"leak.{form}"
    tramark("export", federation, file, "--client", "client-2", "--format", form)
    assert json.loads(tramark("trace", federation, file, "--json"))["clients"] == ["client-2"]


def test_a_trained_model_is_what_the_client_had(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    tramark("export", federation, tmp_path / "leak.safetensors", "--client", "client-2", "--trained")
    trained = (federation / "trained" / "client-2.safetensors").read_bytes()
    assert (tmp_path / "leak.safetensors").read_bytes() == trained
    assert trained != (federation / "models" / "client-2.safetensors").read_bytes()
