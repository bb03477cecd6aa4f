"""Talk HTTP with a stranger.

Every request has a deadline that no slow drip outlives, every response a size that it must not exceed.
Redirects are not followed, so that neither a question nor a token goes where it was not sent. A request that
fails is tried again, more and more slowly, and then given up with an error. Secrets are named, never held: a
header may say `${NAME}`, which is read from the environment when a request is sent. The client is Python's
own, whose sockets can be cut at the deadline, and it says no more about itself than that.
"""

import json
import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import SplitResult, urlsplit, urlunsplit
from urllib.request import HTTPErrorProcessor, HTTPHandler, HTTPSHandler, Request, build_opener

from tramark.errors import BudgetSpent, SuspectError, SuspectUnavailable, one_line

# Statuses that may pass: asking again is worth a try.
PASSING = {408, 425, 429, 500, 502, 503, 504}


SECRET = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)


VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class HttpOptions:
    """How patiently, how politely and as whom a server is asked.

    Parameters
    ----------
    timeout : seconds without any progress (connecting, or waiting for bytes) before a request has failed.
    deadline : seconds before a request has failed in any case.
    retries : how often a failed request is tried again.
    backoff : seconds to wait before the first retry, doubled each time, give or take a half.
    longest_wait : seconds that one wait may take. A server that asks for more (`Retry-After`) is given up for
        now.
    rate : questions per second, at most.
    budget : questions in all, at most; a question sent again counts again, since the server may count it too.
    response_bytes : how long a response may be.
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

    def templates(self) -> dict[str, str]:
        """All headers as they may be shown: with the names of secrets in place of the secrets."""
        token = {"Authorization": f"Bearer ${{{self.token_env}}}"} if self.token_env else {}
        return {**self.headers, **token}


class _Deadline:
    """Cuts the connections it watches when time is up: a byte now and then keeps a read from timing out."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, connection: socket.socket) -> None:
        self._sockets.append(connection)
        if self.over:
            self._cut()

    def _cut(self) -> None:
        self.over = True
        for connection in self._sockets:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Plain(HTTPConnection):
    def __init__(self, deadline: _Deadline, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self._deadline.watch(self.sock)


class _Secure(HTTPSConnection):
    def __init__(self, deadline: _Deadline, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self._deadline.watch(self.sock)


class _PlainHandler(HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(partial(_Plain, self._deadline), request)


class _SecureHandler(HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(partial(_Secure, self._deadline), request, context=ssl.create_default_context())


class _EveryStatus(HTTPErrorProcessor):
    """Hands every response back as it is, so that no redirect is ever followed."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        return response

    https_response = http_response


class _PassingError(Exception):
    """A failure that may pass; `wait` is how long the server asks us to wait."""

    def __init__(self, what: str, wait: float | None = None) -> None:
        super().__init__(what)
        self.wait = wait


class Client:
    """Sends requests to one server, within all limits, and gives back checked JSON."""

    def __init__(self, url: str, options: HttpOptions | None, headers: Mapping[str, str] | None = None) -> None:
        split_url(url)
        self.url, self.options, self.asked = url, options or HttpOptions(), 0
        self.headers = {"Accept": "application/json", **self.options.templates(), **(headers or {})}
        self._not_before = 0.0

    def excerpt(self, said: Any) -> str:
        """The beginning of what a server said, for an error: without our secrets, should it echo them."""
        text = said.decode(errors="replace") if isinstance(said, bytes) else json.dumps(said)
        for template in self.headers.values():
            for name in VARIABLE.findall(template):
                text = text.replace(os.environ.get(name) or "\0", "***")
        return one_line(text, 120)

    def shown_headers(self) -> dict[str, str]:
        """The headers as they may be shown: with the names of secrets, or stars, in place of the secrets."""
        return {
            name: "***" if SECRET.search(name) and not VARIABLE.search(value) else value
            for name, value in self.headers.items()
        }

    def shown(self, url: str | None = None) -> str:
        """A URL without its query, where some servers want their secrets."""
        parts = urlsplit(url or self.url)
        return urlunsplit(parts._replace(query="…" if parts.query else "", fragment=""))

    def send(self, method: str, url: str, body: bytes | None, content_type: str, questions: int) -> Any:
        """The JSON that comes back, after as many tries as allowed; `questions` count for rate and budget."""
        headers = {name: VARIABLE.sub(_variable, value) for name, value in self.headers.items()}
        if body is not None:
            headers["Content-Type"] = content_type
        what = ""
        for attempt in range(self.options.retries + 1):
            self._count(questions)
            try:
                return self._once(Request(url, body, headers, method=method))
            except _PassingError as passing:
                what = str(passing)
                wait = passing.wait or self.options.backoff * 2**attempt * random.uniform(0.5, 1.5)
                if wait > self.options.longest_wait and passing.wait:
                    raise SuspectUnavailable(
                        f"{self.shown()} {what} and asks to wait {wait:.0f} s: go on later"
                    ) from None
            if attempt < self.options.retries:
                time.sleep(min(wait, self.options.longest_wait))
        raise SuspectUnavailable(f"{self.shown()} {what}, {self.options.retries + 1} times: go on later")

    def _count(self, questions: int) -> None:
        if self.options.budget is not None and self.asked + questions > self.options.budget:
            raise BudgetSpent(f"the budget of {self.options.budget} queries is spent")
        if self.options.rate is not None and questions:
            now = time.monotonic()
            time.sleep(max(0.0, self._not_before - now))
            self._not_before = max(now, self._not_before) + questions / self.options.rate
        self.asked += questions

    def _once(self, request: Request) -> Any:
        limit = self.options.response_bytes
        with _Deadline(self.options.deadline) as deadline:
            opener = build_opener(_PlainHandler(deadline), _SecureHandler(deadline), _EveryStatus)
            try:
                with opener.open(request, timeout=self.options.timeout) as response:
                    octets = response.read(limit + 1)
                    # Asked for a number of bytes, http.client is content with fewer than were announced.
                    cut_short = len(octets) <= limit and bool(response.length)
            except (OSError, HTTPException) as error:
                reason = error.reason if isinstance(error, URLError) else error
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise SuspectError(f"{self.shown()} cannot prove who it is ({reason.verify_message})") from None
                if deadline.over:
                    raise _PassingError(f"did not finish within {self.options.deadline:g} s") from None
                text = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
                raise _PassingError(f"does not answer ({one_line(text)})") from None
            if deadline.over:
                raise _PassingError(f"did not finish within {self.options.deadline:g} s")
        if len(octets) > limit:
            raise SuspectError(f"{self.shown()} answers with more than {limit} bytes: it is refused (response_bytes)")
        if cut_short:
            raise _PassingError("broke off in the middle of a response")
        return self._json(response, octets)

    def _json(self, response: HTTPResponse, octets: bytes) -> Any:
        status, kind = response.status, response.headers.get_content_type()
        if 300 <= status < 400:
            where = self.excerpt(response.headers.get("Location", "nowhere").partition("?")[0].encode())
            raise SuspectError(f"{self.shown()} redirects to {where}: if you trust that address, give it instead")
        said = self.excerpt(octets)
        if status in PASSING:
            raise _PassingError(f"answers {_status(status)}", _retry_after(response.headers.get("Retry-After")))
        if not 200 <= status < 300:
            raise SuspectError(f"{self.shown()} answers {_status(status)}: {said}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise SuspectError(f"{self.shown()} answers in a compressed form that was not asked for: it is refused")
        try:
            return json.loads(octets, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise SuspectError(f"{self.shown()} answers with {one_line(kind)} that is not sound JSON: {said}") from None


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


def _variable(found: re.Match[str]) -> str:
    value = os.environ.get(found[1], "")
    if not value or not value.isprintable() or not value.isascii():
        raise SuspectError(f"the environment variable {found[1]} is not set to something that a header can hold")
    return value


def _status(status: int) -> str:
    return f"{status} {HTTPStatus(status).phrase}" if status in HTTPStatus.__members__.values() else str(status)


def _retry_after(value: str | None) -> float | None:
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value.strip()[:12])
    with suppress(ValueError, TypeError, OverflowError):
        until = parsedate_to_datetime(value)
        return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return None


def _refuse(constant: str) -> float:
    raise ValueError(constant)
