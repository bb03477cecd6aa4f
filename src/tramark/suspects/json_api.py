"""Suspects behind any JSON API, asked one question at a time by a template.

The template says what to send and where in the response the answer is. A response with something else in that place
is an error, never an answer.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from urllib3 import encode_multipart_formdata

from tramark.errors import SuspectError
from tramark.suspects.base import Answers, ask_in_batches
from tramark.suspects.conventions import Conventions, Prepare, Said
from tramark.suspects.http import Client, HttpOptions, HttpSuspect, as_tensor
from tramark.suspects.png import png


@dataclass(frozen=True)
class JsonTemplate:
    """How to ask any JSON API one question, and where in its response the answer is.

    >>> JsonTemplate(body={"image": "data:image/png;base64,{png}"}, label="predictions.0.label")
    JsonTemplate(body={'image': 'data:image/png;base64,{png}'}, label='predictions.0.label', ...)

    Parameters
    ----------
    body : the JSON to send. The string "{list}" stands for the input as a nested list; "{png}", anywhere in a
        string, for the image as a base64 PNG.
    label : dotted path to the label: a name or number, or a list with the best first. null or an empty list there
        means that the API gave no answer.
    scores : in place of `label`, the dotted path to the scores: a list in the order of the labels, or an object from
        label to score.
    upload : name of a form field. The image is uploaded in it as a PNG file, and `body` holds the other fields of the
        form.
    method : the HTTP method.
    headers : more headers; `${NAME}` in a value stands for an environment variable.
    """

    body: Any = None
    label: str | None = None
    scores: str | None = None
    upload: str | None = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if (self.label is None) == (self.scores is None):
            raise SuspectError("say where the answer is in the response: a path to either the label or the scores")
        text = json.dumps(self.body)
        if self.upload is None and "{list}" not in text and "{png}" not in text:
            raise SuspectError('the body has no place for the question: put "{list}" or "{png}" into it, or say upload')
        if self.upload is not None and not isinstance(self.body or {}, Mapping):
            raise SuspectError("with upload, the body is an object: the other fields of the form and their values")


class JsonSuspect(HttpSuspect):
    """Any JSON API, asked one question at a time by a template."""

    def __init__(
        self,
        url: str,
        template: JsonTemplate,
        *,
        conventions: Conventions | Prepare,
        options: HttpOptions | None = None,
    ) -> None:
        super().__init__(Client(url, options, template.headers), conventions)
        self.template = template

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        return ask_in_batches(self._ask, raw, 1)

    def preview(self, raw: Tensor) -> str:
        """The requests that would be sent."""
        body, content_type = self._body(raw[:1])
        request = self.client.preview(self.template.method, self.client.url, body, content_type)
        return f"{len(raw)} questions in {len(raw)} requests\n{request}"

    def _body(self, raw: Tensor) -> tuple[bytes, str]:
        if self.template.upload is not None:
            image = ("image.png", self._png(raw), "image/png")
            fields = {name: str(value) for name, value in (self.template.body or {}).items()}
            return encode_multipart_formdata({**fields, self.template.upload: image})
        fill: dict[str, Callable[[], Any]] = {
            "{list}": lambda: self.conventions.inputs(raw)[0].tolist(),
            "{png}": lambda: base64.b64encode(self._png(raw)).decode(),
        }
        return json.dumps(_filled(self.template.body, fill), allow_nan=False).encode(), "application/json"

    def _png(self, raw: Tensor) -> bytes:
        if raw.dtype != torch.uint8 or raw.ndim != 4:
            raise SuspectError('these questions are not images and cannot be sent as PNG: put "{list}" into the body')
        return png(self.conventions.pictures(raw)[0])

    def _ask(self, raw: Tensor) -> Answers:
        body, content_type = self._body(raw)
        response = self.client.send(self.template.method, self.client.url, body, content_type, questions=1)
        return self.conventions.answers(self._said(response), 1)

    def _said(self, response: Any) -> Tensor | list[Said]:
        path = self.template.label or self.template.scores or ""
        value = self._at(path, response)
        best = value[0] if isinstance(value, list) and value else value
        if value is None or value == []:
            return [None]
        if self.template.label is not None:
            if isinstance(best, str) or type(best) is int:
                return [best]
            if isinstance(best, float) and best.is_integer():
                return [int(best)]
        elif isinstance(value, list) and _numbers(value):
            return as_tensor([value], torch.float64)
        elif isinstance(value, dict) and value and _numbers(value.values()):
            winner = max(value, key=value.__getitem__)
            # Not by math.isfinite, which fails on an integer that is too large for a float.
            if abs(value[winner]) < math.inf:
                return [winner]
        raise SuspectError(f"{self.client.shown()} has no answer at {path!r}: {self.client.excerpt(value)}")

    def _at(self, path: str, value: Any) -> Any:
        for step in path.split("."):
            if value is None or value == []:
                return None
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            else:
                raise SuspectError(f"{self.client.shown()} answers without {path!r}: {self.client.excerpt(value)}")
        return value


def _filled(template: Any, fill: Mapping[str, Callable[[], Any]]) -> Any:
    if isinstance(template, Mapping):
        return {key: _filled(value, fill) for key, value in template.items()}
    if isinstance(template, (list, tuple)):
        return [_filled(value, fill) for value in template]
    if template == "{list}":
        return fill["{list}"]()
    if isinstance(template, str) and "{png}" in template:
        return template.replace("{png}", fill["{png}"]())
    return template


def _numbers(values: Iterable[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)
