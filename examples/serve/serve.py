"""A KServe server for ONNX classifiers: what a leaked model may turn up behind.

    python examples/serve/serve.py leak.onnx --labels-only
    tramark trace RUN http://127.0.0.1:8080/v2/models/leak

It speaks the Open Inference Protocol v2 over HTTP, on this machine alone, and prints the address of every model it
serves. `--randomise` and `--fail` make life hard for whoever asks it.
"""

import argparse
import random
import socket
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from kserve import Model, ModelServer
from kserve.errors import InvalidInput, ModelNotReady
from kserve.logging import KSERVE_LOG_CONFIG
from kserve.protocol.rest.server import RESTServer
from kserve.utils.numpy_codec import from_np_dtype
from kserve.utils.utils import get_predict_input, get_predict_response

HOST = "127.0.0.1"
DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


class Classifier(Model):  # type: ignore[misc]
    """One ONNX file; answers with a row of scores per input, or with the best label alone."""

    def __init__(self, name: str, file: Path, *, labels_only: bool, randomise: float, fail: float, seed: int) -> None:
        super().__init__(name)
        self.file, self.labels_only, self.randomise, self.fail = file, labels_only, randomise, fail
        self.random = random.Random(f"{seed} {name}")

    def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(self.file, options, providers=["CPUExecutionProvider"])
        (self.input,), (self.output, *_) = self.session.get_inputs(), self.session.get_outputs()
        self.ready = True
        return self.ready

    def get_input_types(self) -> list[dict[str, Any]]:
        self.stumble()
        return [_described(self.input.name, DTYPES[self.input.type], self.input.shape)]

    def get_output_types(self) -> list[dict[str, Any]]:
        if self.labels_only:
            return [_described("output-0", np.int64, self.output.shape[:1])]
        return [_described("output-0", DTYPES[self.output.type], self.output.shape)]

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        self.stumble()
        inputs = np.asarray(get_predict_input(payload), dtype=DTYPES[self.input.type])
        try:
            (scores,) = self.session.run([self.output.name], {self.input.name: inputs})
        except Exception as error:
            raise InvalidInput(f"inputs of shape {list(inputs.shape)} cannot be classified") from error
        for row in scores:
            if self.random.random() < self.randomise:
                best, label = row.argmax(), self.random.randrange(len(row))
                row[[best, label]] = row[[label, best]]
        return get_predict_response(payload, scores.argmax(axis=1) if self.labels_only else scores, self.name)

    def stumble(self) -> None:
        """Ends a share of the requests in HTTP 503."""
        if self.random.random() < self.fail:
            raise ModelNotReady(self.name)


def _described(name: str, dtype: Any, shape: list[Any]) -> dict[str, Any]:
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    return {"name": name, "datatype": from_np_dtype(np.dtype(dtype)), "shape": sizes}


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="the ONNX file; several may be given")
    parser.add_argument("--name", help="the model's name; that of its file, unless told")
    parser.add_argument("--port", type=int, default=8080, help="where to listen; 0 for any port that is free")
    parser.add_argument("--labels-only", action="store_true", help="answer with labels in place of scores")
    parser.add_argument("--randomise", type=_share, default=0.0, metavar="SHARE", help="of answers: a random label")
    parser.add_argument("--fail", type=_share, default=0.0, metavar="SHARE", help="of requests: HTTP 503")
    parser.add_argument("--seed", type=int, default=0, help="of what is random")
    options = parser.parse_args()
    names = [options.name or file.stem for file in options.files]
    if len(set(names)) < len(names):
        parser.error("several files need several names: leave out --name, and name the files differently")

    # Standard output has the addresses and nothing else.
    KSERVE_LOG_CONFIG["handlers"]["uvicorn_access"]["stream"] = "ext://sys.stderr"
    server = ModelServer(enable_grpc=False)
    hard = {"randomise": options.randomise, "fail": options.fail, "seed": options.seed}
    for name, file in zip(names, options.files, strict=True):
        model = Classifier(name, file, labels_only=options.labels_only, **hard)
        model.load()
        server.register_model(model)
    # Left alone, KServe listens to the whole network.
    with socket.create_server((HOST, options.port)) as listener:
        port = listener.getsockname()[1]
        for name in names:
            print(f"http://{HOST}:{port}/v2/models/{name}", flush=True)
        rest = RESTServer("kserve.model_server:app", server.dataplane, server.model_repository_extension, port)
        rest.run(sockets=[listener])


if __name__ == "__main__":
    main()
