"""FastAPI: the Open Inference Protocol v2 for those who have the key in $SERVED_KEY."""

import os
from typing import Annotated, Any

import numpy as np
import uvicorn
from classifier import HOST, PORT, scores
from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import APIKeyHeader


def known(key: Annotated[str, Depends(APIKeyHeader(name="X-API-Key"))]) -> None:
    if key != os.environ["SERVED_KEY"]:
        raise HTTPException(403)


app = FastAPI(dependencies=[Depends(known)])


@app.get("/v2/models/leaked")
def metadata() -> dict[str, Any]:
    return {"name": "leaked", "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]}


@app.post("/v2/models/leaked/infer")
def infer(request: dict[str, Any]) -> dict[str, Any]:
    (given,) = request["inputs"]
    labels = scores(np.reshape(given["data"], given["shape"])).argmax(1).tolist()
    return {"outputs": [{"name": "label", "datatype": "INT64", "shape": [len(labels)], "data": labels}]}


uvicorn.run(app, host=HOST, port=PORT)
