"""Gradio: an image in, a label with confidences out, in two steps."""

from typing import Any

import gradio
from classifier import HOST, PORT, normalised, scores


def classify(image: Any) -> dict[str, float]:
    (row,) = scores([normalised(image)])
    share = [float(value) for value in 2.0 ** (row - row.max())]
    return {str(i): value / sum(share) for i, value in enumerate(share)}


page = gradio.Interface(
    classify, inputs=gradio.Image(type="pil", image_mode="L"), outputs=gradio.Label(), api_name="predict"
)
page.launch(server_name=HOST, server_port=PORT)
