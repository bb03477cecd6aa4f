"""FastAPI: an image as base64 in JSON, a score for each label out."""

import base64

import uvicorn
from classifier import HOST, PORT, picture, scores
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Question(BaseModel):
    image: str


@app.post("/scores")
def score(question: Question) -> dict[str, list[float]]:
    return {"scores": scores([picture(base64.b64decode(question.image))])[0].tolist()}


uvicorn.run(app, host=HOST, port=PORT)
