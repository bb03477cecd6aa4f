"""Suspects behind HTTP: the Open Inference Protocol v2 (KServe, Triton, MLServer …), and any JSON API.

What a server sends back is checked before it counts as an answer: that it is JSON, of the announced type and
shape, with one answer per question and no NaN. How requests are sent, and within which limits, is told in
`tramark.tracing.client`.
"""

import base64
import json
import math
import secrets
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tramark.errors import SuspectError, one_line
from tramark.suspects.base import Answers, ask_in_batches
from tramark.suspects.conventions import Conventions, Prepare, Said, conventions_of
from tramark.suspects.http import Client, HttpOptions


@dataclass(frozen=True)
class JsonTemplate:
    """How to ask any JSON API one question, and where in its response the answer is.

    >>> JsonTemplate(body={"image": "data:image/png;base64,{png}"}, label="predictions.0.label")
    JsonTemplate(body={'image': 'data:image/png;base64,{png}'}, label='predictions.0.label', ...)

    Parameters
    ----------
    body : the JSON to send. The string "{list}" stands for the input as a nested list; "{png}", anywhere in a
        string, for the image as a base64 PNG.
    label : dotted path to the label (a name or number, or a list with the best first). Nothing there (null,
        an empty list) is no answer.
    scores : or, the dotted path to the scores: a list in the order of the labels, or an object from label to
        score.
    upload : name of the form field in which to upload the PNG as a file, in place of JSON; `body` then holds
        further fields of the form.
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


class JsonSuspect:
    """Any JSON API, asked one question at a time by a template."""

    def __init__(
        self,
        url: str,
        template: JsonTemplate,
        *,
        conventions: Conventions | Prepare,
        options: HttpOptions | None = None,
    ) -> None:
        self.client, self.template = Client(url, options, template.headers), template
        self.conventions = conventions_of(conventions)

    def __repr__(self) -> str:
        return f"JsonSuspect({self.client.shown()!r}, {self.template!r}, {self.conventions!r})"

    @property
    def asked(self) -> int:
        """How many questions were sent so far, those that were sent again included."""
        return self.client.asked

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        return ask_in_batches(self._ask, raw, 1)

    def preview(self, raw: Tensor) -> str:
        """The requests that would be sent."""
        body, content_type = self._body(raw[:1])
        request = preview_request(self.client, self.template.method, "", body, content_type)
        return f"{len(raw)} questions in {len(raw)} requests\n{request}"

    def _body(self, raw: Tensor) -> tuple[bytes, str]:
        if self.template.upload is not None:
            return _form(self.template.body or {}, self.template.upload, self._png(raw))
        fill: dict[str, Callable[[], Any]] = {
            "{list}": lambda: self.conventions.inputs(raw)[0].tolist(),
            "{png}": lambda: base64.b64encode(self._png(raw)).decode(),
        }
        return json.dumps(_filled(self.template.body, fill), allow_nan=False).encode(), "application/json"

    def _png(self, raw: Tensor) -> bytes:
        if raw.dtype != torch.uint8 or raw.ndim != 4:
            raise SuspectError('these questions are no images, and cannot go as PNG: put "{list}" into the body')
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
            if math.isfinite(value[winner]):
                return [winner]
        raise SuspectError(f"{self.client.shown()} has no answer at {path!r}, but {self.client.excerpt(value)}")

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


def png(image: Tensor) -> bytes:
    """A C×H×W image of bytes, grey or RGB, as a PNG file.

    >>> png(torch.zeros(1, 2, 2, dtype=torch.uint8))[:4]
    b'\\x89PNG'
    """
    channels, height, width = image.shape
    if channels not in (1, 3):
        raise SuspectError(f"an image of {channels} channels cannot go as PNG: say colour grey or rgb")
    rows = image.cpu().movedim(0, -1).reshape(height, width * channels)
    # Each row is preceded by the number of its filter: none.
    scanlines = torch.cat([rows.new_zeros(height, 1), rows], dim=1).numpy().tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(scanlines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _form(fields: Mapping[str, str], upload: str, picture: bytes) -> tuple[bytes, str]:
    boundary = secrets.token_hex(16)
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    head = f'Content-Disposition: form-data; name="{upload}"; filename="image.png"\r\n'
    parts.append(f"{head}Content-Type: image/png\r\n\r\n".encode() + picture)
    body = b"".join(f"--{boundary}\r\n".encode() + part + b"\r\n" for part in parts) + f"--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


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


def preview_request(client: Client, method: str, suffix: str, body: bytes, content_type: str) -> str:
    headers = "".join(
        f"{name}: {value}\n" for name, value in {**client.shown_headers(), "Content-Type": content_type}.items()
    )
    more = f"… ({len(body)} bytes)" if len(body) > 400 else ""
    text = one_line(body[:400].decode(errors="replace"), 400)
    return f"{method} {client.shown(client.url + suffix)}\n{headers}\n{text}{more}"


def _numbers(values: Iterable[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)


def as_tensor(values: list[Any], dtype: torch.dtype) -> Tensor:
    try:
        return torch.tensor(values, dtype=dtype)
    except (ValueError, RuntimeError, OverflowError, TypeError):
        raise SuspectError("the server answers with numbers that are out of range") from None
