"""A leaked classifier, as the programs of this folder serve it. $MODEL is an ONNX file and $PORT where to listen."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

HOST, PORT = "127.0.0.1", int(os.environ["PORT"])
FILE = Path(os.environ["MODEL"])
SESSION = onnxruntime.InferenceSession(FILE, providers=["CPUExecutionProvider"])


def scores(inputs: Any) -> np.ndarray:
    """A row of scores for each input."""
    (found,) = SESSION.run(None, {"input": np.asarray(inputs, dtype=np.float32)})
    return found


def label(one: Any) -> int:
    """The label of one input."""
    return int(scores([one])[0].argmax())


def picture(octets: bytes) -> np.ndarray:
    """An image file as an input."""
    from PIL import Image

    return normalised(Image.open(io.BytesIO(octets)))


def normalised(image: Any) -> np.ndarray:
    """An image as an input, by the mean and standard deviation beside the model."""
    how = json.loads(FILE.with_suffix(".json").read_text())
    values = np.asarray(image.convert("L"), dtype=np.float32) / 255
    return (values[None] - how["mean"]) / how["std"]
