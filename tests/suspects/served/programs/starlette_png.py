"""Starlette: the image itself as the body, a score by the name of each label out."""

import uvicorn
from classifier import HOST, PORT, picture, scores
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def classify(request: Request) -> JSONResponse:
    (row,) = scores([picture(await request.body())])
    return JSONResponse({"prediction": {str(i): float(score) for i, score in enumerate(row)}})


uvicorn.run(Starlette(routes=[Route("/classify", classify, methods=["POST"])]), host=HOST, port=PORT)
