"""The servers and formats behind or in which a leaked model is traced, each with its command: the table of
docs/reference/suspects.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

V2 = "tramark trace vault http://127.0.0.1:8000/v2/models/leaked"
BY_TEMPLATE = "tramark trace vault http://127.0.0.1:8000{path} --template template.json"


@dataclass(frozen=True)
class Row:
    """One server or format.

    Parameters
    ----------
    name : what it is.
    of : the distribution, or package of Node, whose version is told.
    command : what traces it, in a folder with the vault, the leaked files and template.json; or, for a function in
        memory, what the program calls.
    template : what template.json holds.
    program : what serves it, in tests/suspects/served/programs; none for files.
    start : what starts the program; {python}, {program} and {folder} are filled in.
    ready : the path that answers once the server is ready.
    needs : packages for an environment of its own; none if it runs in ours.
    """

    name: str
    of: str
    command: str
    template: Mapping[str, Any] | None = None
    program: str | None = None
    start: tuple[str, ...] = ("{python}", "{program}")
    ready: str = "/"
    needs: tuple[str, ...] = ()


def _file(name: str, of: str, file: str) -> Row:
    return Row(name, of, f"tramark trace vault {file}")


def _api(name: str, of: str, program: str, path: str, template: Mapping[str, Any], **more: Any) -> Row:
    return Row(name, of, BY_TEMPLATE.format(path=path), template, program, **more)


PICTURE = {"body": {"image": "{png}"}, "scores": "scores"}


FILES = (
    _file("safetensors", "safetensors", "leaked.safetensors"),
    _file("state dict, `.pt`", "torch", "leaked.pt"),
    _file("checkpoint, `{'model': state_dict}`", "torch", "checkpoint.pt"),
    _file("TorchScript", "torch", "leaked.ts"),
    _file("exported program, `.pt2`", "torch", "leaked.pt2"),
    _file("ONNX", "onnxruntime", "leaked.onnx"),
    _file("ONNX, quantised to INT8", "onnxruntime", "int8.onnx"),
)
FOLDER = _file("Hugging Face folder", "transformers", "folder")
FUNCTIONS = (
    Row("Python function", "numpy", "trace(answers, vault)", program="function.py"),
    Row("scikit-learn, by a function", "scikit-learn", "trace(answers, vault)", program="sklearn_model.py"),
)
KERAS = Row(
    "Keras, by a function",
    "keras",
    "trace(answers, vault)",
    program="keras_model.py",
    needs=("keras", "absl-py", "h5py", "namex", "optree", "ml-dtypes"),
)
SERVERS = (
    _api("FastAPI, numbers", "fastapi", "fastapi_json.py", "/predict", {"body": {"x": "{list}"}, "label": "label"}),
    _api("FastAPI, upload", "fastapi", "fastapi_upload.py", "/classify", {"upload": "file", "label": "0.label"}),
    _api(
        "FastAPI, base64", "fastapi", "fastapi_base64.py", "/scores", {"body": {"image": "{png}"}, "scores": "scores"}
    ),
    _api("Flask, form", "flask", "flask_form.py", "/", {"send": "form", "body": {"image": "{png}"}, "label": ""}),
    _api("Starlette, PNG", "starlette", "starlette_png.py", "/classify", {"send": "png", "scores": "prediction"}),
    _api(
        "aiohttp, 202 and later",
        "aiohttp",
        "aiohttp_later.py",
        "/jobs",
        {"body": {"x": "{list}"}, "then": "/jobs/{job}", "ready": {"status": "done"}, "label": "label"},
    ),
    Row("v2 with a key", "fastapi", f"{V2} --header X-API-Key=SERVED_KEY", program="fastapi_key.py"),
    Row(
        "KServe",
        "kserve",
        V2,
        program="../../../../examples/serve/serve.py",
        start=("{python}", "{program}", "leaked.onnx", "--port", "{port}"),
        ready="/v2/health/ready",
    ),
)
HEAVY = (
    _api(
        "LitServe",
        "litserve",
        "litserve_api.py",
        "/predict",
        {"body": {"input": "{list}"}, "label": "output"},
        ready="/health",
        needs=("litserve", "onnxruntime"),
    ),
    _api(
        "BentoML",
        "bentoml",
        "bentoml_service.py",
        "/classify",
        {"body": {"x": "{list}"}, "label": ""},
        start=("{python}", "-m", "bentoml", "serve", "bentoml_service:Leaked", "--host", "127.0.0.1", "-p", "{port}"),
        ready="/readyz",
        needs=("bentoml", "onnxruntime"),
    ),
    Row(
        "MLServer",
        "mlserver",
        V2,
        program="mlserver",
        start=("mlserver", "start", "{program}"),
        ready="/v2/models/leaked/ready",
        needs=("mlserver", "onnxruntime"),
    ),
    _api(
        "Gradio",
        "gradio",
        "gradio_interface.py",
        "/gradio_api/call/predict",
        {"body": {"data": [{"url": "data:image/png;base64,{png}"}]}, "then": "{event_id}", "label": "0.label"},
        needs=("gradio", "onnxruntime"),
    ),
    _api(
        "MLflow",
        "mlflow",
        "mlflow_model.py",
        "/invocations",
        {"body": {"inputs": ["{list}"]}, "scores": "predictions.logits.0"},
        ready="/ping",
        needs=("mlflow", "onnx", "onnxruntime"),
    ),
    _api(
        "Ray Serve",
        "ray",
        "ray_serve.py",
        "/predict",
        {"body": {"x": "{list}"}, "label": "label"},
        ready="/-/healthz",
        needs=("ray[serve]", "onnxruntime"),
    ),
    Row(
        "Triton, by PyTriton",
        "nvidia-pytriton",
        V2,
        program="pytriton_server.py",
        ready="/v2/models/leaked/ready",
        needs=("nvidia-pytriton", "onnxruntime"),
    ),
    _api(
        "Express, ONNX Runtime in Node",
        "onnxruntime-node",
        "express.cjs",
        "/predict",
        {"body": {"x": "{list}"}, "label": "label"},
        start=("node", "{program}"),
        needs=("express", "onnxruntime-node"),
    ),
)
ROWS = (*FILES, FOLDER, *FUNCTIONS, KERAS, *SERVERS, *HEAVY)
