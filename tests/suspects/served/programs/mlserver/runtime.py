"""MLServer: a runtime of one's own for the ONNX file."""

import os

import numpy as np
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Leaked(MLModel):
    async def load(self) -> bool:
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        inputs = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32)
        (scores,) = self.session.run(None, {"input": inputs})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("scores", scores)])
