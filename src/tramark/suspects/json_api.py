"""Suspects behind any JSON API, asked one question at a time by a template.

The template says what to send and where in the response the answer is. A response with something else in that place
is an error, never an answer.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlencode, urljoin, urlunsplit

import torch
from torch import Tensor
from urllib3 import encode_multipart_formdata

from tramark.errors import SuspectError
from tramark.suspects.base import Answers, ask_in_batches
from tramark.suspects.conventions import Conventions, Prepare, Said
from tramark.suspects.http import Client, HttpOptions, HttpSuspect, NotYet, as_tensor, split_url
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
    label : dotted path to the label: a name or number, or a list with the best first. An empty path is the whole
        response. null or an empty list there means that the API gave no answer.
    scores : in place of `label`, the dotted path to the scores: a list in the order of the labels, or an object from
        label to score.
    send : "json" (by default); "form" or "multipart", for which `body` holds the fields of the form; or "png", for
        which the image itself is the body.
    upload : name of a field of a multipart form. The image is uploaded in it as a PNG file, and `body` holds the other
        fields.
    then : for an API that answers later, the URL at which the answer is fetched, absolute or relative to the first one.
        "{path}" in it stands for the value at that dotted path of the first response. It is asked again while it says
        202, or while `ready` is not true. A stream of events is read up to its event "complete".
    ready : dotted paths of the later response, and the values that they have once the answer is there.
    method : the HTTP method.
    headers : more headers; `${NAME}` in a value stands for an environment variable.
    """

    body: Any = None
    label: str | None = None
    scores: str | None = None
    send: Literal["json", "form", "multipart", "png"] = "json"
    upload: str | None = None
    then: str | None = None
    ready: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if (self.label is None) == (self.scores is None):
            raise SuspectError("say where the answer is in the response: a path to either the label or the scores")
        if self.upload is not None:
            object.__setattr__(self, "send", "multipart")
        text = json.dumps(self.body)
        asks = self.upload is not None or self.send == "png" or "{list}" in text or "{png}" in text
        if not asks:
            raise SuspectError('the body has no place for the question: put "{list}" or "{png}" into it, or say upload')
        if self.send in ("form", "multipart") and not isinstance(self.body or {}, Mapping):
            raise SuspectError("the body of a form is an object: its fields and their values")
        if self.send == "png" and self.body is not None:
            raise SuspectError("the image itself is sent as the body (send): leave body out")
        if self.ready and self.then is None:
            raise SuspectError("ready tells when a later answer is there: say where it is fetched (then)")


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

    @property
    def by_numbers(self) -> bool:
        """Whether the values of inputs are sent as numbers, and not as a picture."""
        return "{list}" in json.dumps(self.template.body, default=str)

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        return ask_in_batches(self._ask, raw, 1)

    def preview(self, raw: Tensor) -> str:
        """The requests that would be sent."""
        body, content_type = self._body(raw[:1])
        request = self.client.preview(self.template.method, self.client.url, body, content_type)
        later = "" if self.template.then is None else f"\nGET {self.template.then}, until the answer is there"
        return f"{len(raw)} questions in {len(raw)} requests\n{request}{later}"

    def _body(self, raw: Tensor) -> tuple[bytes, str]:
        template = self.template
        if template.send == "png":
            return self._png(raw), "image/png"
        fill: dict[str, Callable[[], Any]] = {
            "{list}": lambda: self.conventions.inputs(raw)[0].tolist(),
            "{png}": lambda: base64.b64encode(self._png(raw)).decode(),
        }
        body = _filled(template.body, fill)
        if template.send == "json":
            return json.dumps(body, allow_nan=False).encode(), "application/json"
        fields = {n: v if isinstance(v, str) else json.dumps(v, allow_nan=False) for n, v in (body or {}).items()}
        if template.send == "form":
            return urlencode(fields).encode(), "application/x-www-form-urlencoded"
        image = {} if template.upload is None else {template.upload: ("image.png", self._png(raw), "image/png")}
        return encode_multipart_formdata({**fields, **image})

    def _png(self, raw: Tensor) -> bytes:
        if raw.dtype != torch.uint8 or raw.ndim != 4:
            raise SuspectError('these questions are not images and cannot be sent as PNG: put "{list}" into the body')
        return png(self.conventions.pictures(raw)[0])

    def _ask(self, raw: Tensor) -> Answers:
        body, content_type = self._body(raw)
        method, url = self.template.method, self.client.url
        response = self.client.send(method, url, body, content_type, questions=1, text=self._path == "")
        if self.template.then is not None:
            response = self._later(self.template.then, response.said if isinstance(response, NotYet) else response)
        elif isinstance(response, NotYet):
            raise SuspectError(f"{self.client.shown()} answers later (202): say where the answer is fetched (then)")
        return self.conventions.answers(self._said(response), 1)

    def _later(self, then: str, response: Any) -> Any:
        """The response at the address that the first response completes, once it is ready."""

        def value(found: re.Match[str]) -> str:
            part = self._at(found[1], response)
            if not isinstance(part, (str, int)):
                raise SuspectError(
                    f"{self.client.shown()} answers without {found[1]!r}: {self.client.excerpt(response)}"
                )
            # The server may choose what is fetched, but not where: a path or an id goes in as one piece.
            return quote(str(part), safe="")

        here = split_url(self.client.url)
        beneath = urlunsplit(here._replace(path=here.path.rstrip("/") + "/", query="", fragment=""))
        url = urljoin(beneath, re.sub(r"\{([\w.-]+)\}", value, then))
        there = split_url(url)
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            raise SuspectError("the later answer (then) must be at the server that was asked")

        def there_yet(said: Any) -> bool:
            with suppress(SuspectError):
                return all(str(self._at(path, said)) == wanted for path, wanted in self.template.ready.items())
            return False

        return self.client.fetch(url, there_yet, text=self._path == "")

    @property
    def _path(self) -> str:
        return (self.template.scores if self.template.label is None else self.template.label) or ""

    def _said(self, response: Any) -> Tensor | list[Said]:
        path = self._path
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
        for step in path.split(".") if path else ():
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
