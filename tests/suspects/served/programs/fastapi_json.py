"""FastAPI: numbers in JSON, the label out."""

import uvicorn
from classifier import HOST, PORT, label
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Question(BaseModel):
    x: list[list[list[float]]]


@app.post("/predict")
def predict(question: Question) -> dict[str, int]:
    return {"label": label(question.x)}


uvicorn.run(app, host=HOST, port=PORT)
