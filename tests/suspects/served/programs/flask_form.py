"""Flask: an image as base64 in a form, the label as plain text out."""

import base64

from classifier import HOST, PORT, label, picture
from flask import Flask, Response, request

app = Flask(__name__)


@app.post("/")
def classify() -> Response:
    return Response(str(label(picture(base64.b64decode(request.form["image"])))), mimetype="text/plain")


app.run(host=HOST, port=PORT)
