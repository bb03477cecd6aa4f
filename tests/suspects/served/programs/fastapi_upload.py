"""FastAPI: an uploaded image, the names of labels with the best first."""

from typing import Any

import uvicorn
from classifier import HOST, PORT, picture, scores
from fastapi import FastAPI, UploadFile

app = FastAPI()


@app.post("/classify")
def classify(file: UploadFile) -> list[dict[str, Any]]:
    (row,) = scores([picture(file.file.read())])
    return [{"label": f"digit_{i}", "score": float(row[i])} for i in row.argsort()[::-1]]


uvicorn.run(app, host=HOST, port=PORT)
