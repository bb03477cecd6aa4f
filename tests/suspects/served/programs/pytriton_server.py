"""Triton, started by PyTriton: the Open Inference Protocol v2."""

import socket

import numpy as np
from classifier import HOST, PORT, scores
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def free() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


@batch
def infer(input: np.ndarray) -> dict[str, np.ndarray]:
    return {"label": scores(input).argmax(1, keepdims=True)}


config = TritonConfig(http_address=HOST, http_port=PORT, grpc_address=HOST, grpc_port=free(), metrics_port=free())
with Triton(config=config) as triton:
    wanted, given = (
        Tensor(name="input", dtype=np.float32, shape=(1, 8, 8)),
        Tensor(name="label", dtype=np.int64, shape=(1,)),
    )
    triton.bind("leaked", infer, inputs=[wanted], outputs=[given], config=ModelConfig(max_batch_size=64))
    triton.serve()
