"""Ask a server that nobody vouches for.

Failed requests are repeated, more and more slowly, and then given up with an error. Questions are counted for
budget and rate. A response must be JSON; its size and time are limited (`exchange`). No object holds a secret:
a header may say `${NAME}`, which is read from the environment when a request is sent. `HttpSuspect` is what all
suspects behind a server have in common.
"""

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import torch
from torch import Tensor
from urllib3 import BaseHTTPResponse, HTTPHeaderDict
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.util import Retry

from tramark.errors import BudgetSpent, SettingError, SuspectError, SuspectUnavailable, one_line
from tramark.suspects.conventions import Conventions, Prepare, conventions_of
from tramark.suspects.exchange import FinalError, PassingError, exchange

# After these statuses it is worth asking again.
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
SECRET = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)
# Seconds between two looks whether a later answer is there.
FIRST_POLL, LONGEST_POLL = 0.1, 2.0
VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class HttpOptions:
    """How patiently, how fast and as whom a server is asked.

    Parameters
    ----------
    timeout : seconds without any progress (connecting, or waiting for bytes) after which a request has failed.
    deadline : seconds after which a request has failed in any case.
    retries : how often a failed request is repeated.
    backoff : the first repeat follows at once, the next ones after 2, 4, 8 … times this many seconds, plus up
        to this many at random.
    longest_wait : the longest wait between two requests, in seconds. If the server asks for a longer one
        (`Retry-After`), it is given up for now.
    rate : the most questions per second.
    budget : the most questions in all. A repeated question counts again, because the server may count it too.
    response_bytes : the longest response that is read.
    token_env : name of the environment variable that holds a bearer token.
    headers : more headers; `${NAME}` in a value stands for an environment variable.
    """

    timeout: float = 10.0
    deadline: float = 30.0
    retries: int = 4
    backoff: float = 0.5
    longest_wait: float = 60.0
    rate: float | None = None
    budget: int | None = None
    response_bytes: int = 4 << 20
    token_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("timeout", "deadline", "rate", "response_bytes", "retries", "backoff", "longest_wait", "budget"):
            value, or_zero = getattr(self, name), name in ("retries", "backoff", "longest_wait", "budget")
            if value is not None and not (math.isfinite(value) and (value > 0 or (or_zero and value == 0))):
                raise SettingError(f"{name} is {value}: give a positive number{' or zero' if or_zero else ''}")


def from_environment(pairs: Sequence[str]) -> dict[str, str]:
    """Headers whose values are read from the environment, given as NAME=ENVVAR.

    >>> from_environment(["X-API-Key=MY_KEY"])
    {'X-API-Key': '${MY_KEY}'}
    """
    found = [re.fullmatch(r"([\w-]+)=(\w+)", pair) for pair in pairs]
    if None in found:
        # What was given may be the secret itself.
        raise SettingError("a header is given as NAME=ENVVAR: the name of the variable that holds its value")
    return {one[1]: f"${{{one[2]}}}" for one in found if one}


class Client:
    """Sends requests to one server, within all limits, and returns the JSON of its responses."""

    def __init__(self, url: str, options: HttpOptions | None, headers: Mapping[str, str] | None = None) -> None:
        split_url(url)
        self.url, self.options, self.asked = url, options or HttpOptions(), 0
        token = {"Authorization": f"Bearer ${{{self.options.token_env}}}"} if self.options.token_env else {}
        templates = {"Accept": "application/json", **self.options.headers, **token, **(headers or {})}
        self.headers = {name: str(value) for name, value in templates.items()}
        self._not_before = 0.0

    def shown(self, url: str | None = None) -> str:
        """A URL without its query, where some servers want their secrets."""
        parts = urlsplit(url or self.url)
        return urlunsplit(parts._replace(query="…" if parts.query else "", fragment=""))

    def excerpt(self, said: Any) -> str:
        """The start of a response, for an error message. Secrets that the server echoes are replaced by stars."""
        text = said.decode(errors="replace") if isinstance(said, bytes) else json.dumps(said, default=repr)
        for template in self.headers.values():
            for name in VARIABLE.findall(template):
                text = text.replace(os.environ.get(name) or "\0", "***")
        return one_line(text, 120)

    def preview(self, method: str, url: str, body: bytes, content_type: str) -> str:
        """A request as it may be shown: secrets by their names or as stars, and the start of the body."""
        lines = [f"{method} {self.shown(url)}"]
        for name, value in {**self.headers, "Content-Type": content_type}.items():
            lines.append(f"{name}: {'***' if SECRET.search(name) and not VARIABLE.search(value) else value}")
        more = f"… ({len(body)} bytes)" if len(body) > 400 else ""
        return "\n".join([*lines, "", one_line(body[:400].decode(errors="replace"), 400) + more])

    def send(
        self, method: str, url: str, body: bytes | None, content_type: str, questions: int, *, text: bool = False
    ) -> Any:
        """The JSON in the response, after as many attempts as allowed; `questions` count for rate and budget.

        With `text`, a response that says that it is plain text is that text. A response of status 202, which stands
        for none yet, is a `NotYet`.
        """
        headers, options = HTTPHeaderDict(), self.options
        for name, value in self.headers.items():
            headers[name] = VARIABLE.sub(_variable, value)
        if body is not None:
            headers["Content-Type"] = content_type
        retry = Retry(
            options.retries,
            backoff_factor=options.backoff,
            backoff_jitter=options.backoff,
            backoff_max=options.longest_wait,
        )
        while True:
            self._count(questions)
            try:
                response, octets = exchange(
                    method,
                    url,
                    body,
                    headers,
                    timeout=options.timeout,
                    deadline=options.deadline,
                    limit=options.response_bytes,
                )
                said = self._json(response, octets, text)
                return NotYet(said) if response.status == HTTPStatus.ACCEPTED else said
            except FinalError as final:
                raise SuspectError(f"{self.shown()} {final}") from None
            except PassingError as passing:
                failure, wait, status = f"{self.shown()} {passing}", passing.wait, passing.status
            if wait > options.longest_wait:
                raise SuspectUnavailable(f"{failure} and asks to wait {wait:.0f} s: go on later")
            try:
                retry = retry.increment()
            except MaxRetryError:
                unavailable = SuspectUnavailable(f"{failure}, {options.retries + 1} times: go on later")
                unavailable.status = status
                raise unavailable from None
            time.sleep(wait or retry.get_backoff_time())

    def fetch(self, url: str, ready: Callable[[Any], bool], *, text: bool = False) -> Any:
        """The JSON at an address, asked for again until it is ready: for `longest_wait` seconds in all."""
        until, wait = time.monotonic() + self.options.longest_wait, FIRST_POLL
        while isinstance(said := self.send("GET", url, None, "", questions=0, text=text), NotYet) or not ready(said):
            if time.monotonic() + wait > until:
                raise SuspectUnavailable(
                    f"{self.shown()} has no answer after {self.options.longest_wait:g} s (longest_wait): go on later"
                )
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_POLL)
        return said

    def _count(self, questions: int) -> None:
        if self.options.budget is not None and self.asked + questions > self.options.budget:
            raise BudgetSpent(f"the budget of {self.options.budget} queries is spent")
        if self.options.rate is not None and questions:
            now = time.monotonic()
            time.sleep(max(0.0, self._not_before - now))
            self._not_before = max(now, self._not_before) + questions / self.options.rate
        self.asked += questions

    def _json(self, response: BaseHTTPResponse, octets: bytes, text: bool) -> Any:
        status, headers, said = response.status, response.headers, self.excerpt(octets)
        known = f" {HTTPStatus(status).phrase}" if status in HTTPStatus.__members__.values() else ""
        if 300 <= status < 400:
            where = self.excerpt(headers.get("Location", "nowhere").partition("?")[0].encode())
            raise FinalError(f"redirects to {where}: if you trust that address, give it instead")
        if status in PASSING:
            raise PassingError(f"answers {status}{known}", _retry_after(response), status)
        if not 200 <= status < 300:
            raise FinalError(f"answers {status}{known}: {said}")
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise FinalError("answers in a compressed form that was not asked for: it is refused")
        kind = one_line(headers.get("Content-Type", "something").partition(";")[0]).lower()
        try:
            if text and kind == "text/plain":
                return octets.decode()
            if kind == "text/event-stream":
                octets = _completed(octets)
            if status == HTTPStatus.ACCEPTED and not octets.strip():
                return None
            return json.loads(octets, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise FinalError(f"answers with {kind} that is not sound JSON: {said}") from None


@dataclass(frozen=True)
class NotYet:
    """What a server says that has taken a question and will answer later (202 Accepted)."""

    said: Any


class HttpSuspect:
    """What suspects behind a server share: a client, their conventions, and a count of the questions sent."""

    def __init__(self, client: Client, conventions: Conventions | Prepare) -> None:
        self.client, self.conventions = client, conventions_of(conventions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client.shown()!r}, {self.conventions!r})"

    @property
    def asked(self) -> int:
        """How many questions were sent so far, repeated ones included."""
        return self.client.asked


def split_url(url: str) -> SplitResult:
    """The parts of a URL that can be asked."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or any(c.isspace() or not c.isprintable() for c in url):
        raise SuspectError(f"{one_line(url.partition('?')[0])!r} is not an http:// or https:// URL")
    if parts.username or parts.password:
        raise SuspectError("a URL with a password in it ends up in logs: say which variable has it (token_env)")
    return parts


def as_tensor(values: list[Any], dtype: torch.dtype) -> Tensor:
    """Numbers from a response as a tensor."""
    try:
        return torch.tensor(values, dtype=dtype)
    except (ValueError, RuntimeError, OverflowError, TypeError):
        raise SuspectError("the server answers with numbers that are out of range") from None


def _completed(octets: bytes) -> bytes:
    """The data of the event "complete" in a stream of events, as Gradio sends it."""
    for event in re.split(r"\r?\n\r?\n", octets.decode()):
        fields = dict(re.findall(r"^(event|data): ?(.*?)\r?$", event, flags=re.MULTILINE))
        if fields.get("event") == "complete":
            return str(fields.get("data", "")).encode()
    raise ValueError("no event is complete")


def _retry_after(response: BaseHTTPResponse) -> float:
    # A header that cannot be read asks for nothing.
    with suppress(HTTPError, ValueError, OverflowError):
        return Retry().get_retry_after(response) or 0.0
    return 0.0


def _variable(found: re.Match[str]) -> str:
    value = os.environ.get(found[1], "")
    if not value or not value.isprintable() or not value.isascii():
        raise SuspectError(f"the environment variable {found[1]} is not set to something that a header can hold")
    return value


def _refuse(constant: str) -> float:
    raise ValueError(constant)
