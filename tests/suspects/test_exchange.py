"""What must be true of a single HTTP request, however the server lies about lengths: on raw sockets of this machine."""

import base64
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

import pytest

from tramark.suspects.exchange import FinalError, PassingError, exchange

LIMIT = 65536
ANSWER = b'{"label": 3}'
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
FLOOD = b"[" * 65536


class Raw:
    """Reads a request, sends these bytes, then sends others over and over; counts how many were taken."""

    def __init__(self, start: bytes, forever: bytes = b"", pause: float = 0.0) -> None:
        self.start, self.forever, self.pause, self.sent, self.request = start, forever, pause, 0, b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/x?key=hush"

    def serve(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(5)
        with connection, contextlib.suppress(OSError):
            self.request = connection.recv(65536)
            connection.sendall(self.start)
            for octets in repeat(self.forever, 4000 if self.forever else 0):
                self.sent += connection.send(octets)
                time.sleep(self.pause)


@contextmanager
def raw(start: bytes, forever: bytes = b"", pause: float = 0.0) -> Iterator[Raw]:
    server = Raw(start, forever, pause)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        thread.join(6)
        server.listener.close()
    assert not thread.is_alive()


def ask(server: Raw, deadline: float = 5.0) -> bytes:
    return exchange("GET", server.url, None, {}, timeout=2, deadline=deadline, limit=LIMIT)[1]


@pytest.mark.parametrize(
    "start",
    [
        OK + b"\r\n",
        OK + b"Content-Length: 1000000000000000\r\n\r\n",
        OK + b"Content-Length: -5\r\n\r\n",
        OK + b"Content-Length: many\r\n\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"-ffffffffffff\r\n",
        CHUNKED + b"ffffffffffffffffffffffff\r\n",
        CHUNKED + b"2\r\n[[\r\n-1\r\n",
        OK + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
    ],
)
def test_reading_stops_at_the_limit(start: bytes) -> None:
    with raw(start, FLOOD) as server, pytest.raises(FinalError, match="more than 65536 bytes"):
        ask(server)
    # What was sent and not read waits in the buffers of the system, which hold a few megabytes.
    assert server.sent < 32 << 20


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (OK + b"Content-Length: 100\r\n\r\n" + ANSWER, "in the middle of a response"),
        (CHUNKED + b"c\r\n" + ANSWER, "in the middle of a response"),
        (CHUNKED + b"ff\r\n" + ANSWER, "in the middle of a response"),
        (CHUNKED + b"nonsense\r\n" + ANSWER, "in the middle of a response"),
        (CHUNKED + b"-1\r\n" + ANSWER, "in the middle of a response"),
        (OK + b"Content-Length: 12, 13\r\n\r\n" + ANSWER, "does not answer"),
        (OK + b"X: " + b"x" * 70_000, "does not answer"),
        (OK + b"X: y\r\n" * 200, "does not answer"),
        (b"HTTP/1.1 2OO OK\r\n\r\n", "does not answer"),
        (b"", "does not answer"),
    ],
)
def test_a_response_that_is_not_whole_is_none(start: bytes, says: str) -> None:
    with raw(start) as server, pytest.raises(PassingError, match=says):
        ask(server)


def test_no_more_than_the_announced_length_is_read() -> None:
    with raw(OK + b"Content-Length: 12\r\n\r\n" + ANSWER + FLOOD) as server:
        assert ask(server) == ANSWER


@pytest.mark.parametrize(
    ("start", "forever"),
    [
        (b"", b"H"),
        (OK + b"X: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK + b"\r\n", b" "),
        (CHUNKED, b"1\r\n[\r\n"),
        (CHUNKED + b"1;", b"x"),
        (CHUNKED + b"c\r\n" + ANSWER + b"\r\n0\r\n", b"X: y\r\n"),
    ],
)
def test_no_drip_outlasts_the_deadline(start: bytes, forever: bytes) -> None:
    began = time.monotonic()
    with raw(start, forever, pause=0.02) as server, pytest.raises(PassingError, match="did not finish"):
        ask(server, deadline=0.4)
    assert time.monotonic() - began < 3


def test_no_log_shows_the_query(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with raw(OK + b"this is no header\r\nContent-Length: 12\r\n\r\n" + ANSWER) as server:
        ask(server)
    assert b"hush" in server.request
    assert "hush" not in caplog.text
    logging.getLogger("urllib3.connectionpool").debug("others' requests are logged")
    assert "others' requests are logged" in caplog.text


class TestProxies:
    def test_the_environment_names_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with raw(OK + b"Content-Length: 12\r\n\r\n" + ANSWER) as proxy:
            place = proxy.url.removeprefix("http://").partition("/")[0]
            monkeypatch.setenv("http_proxy", f"http://me:p%40ss@{place}")
            target = "http://nowhere.invalid/x?y=1"
            assert exchange("GET", target, None, {}, timeout=2, deadline=5, limit=LIMIT)[1] == ANSWER
        assert proxy.request.startswith(b"GET http://nowhere.invalid/x?y=1 HTTP/1.1\r\n")
        assert b"Basic " + base64.b64encode(b"me:p@ss") in proxy.request

    def test_but_not_for_all_servers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "nowhere.invalid:1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with raw(OK + b"Content-Length: 12\r\n\r\n" + ANSWER) as server:
            assert ask(server) == ANSWER

    def test_one_that_cannot_be_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "socks5://me:secret@127.0.0.1:1")
        with pytest.raises(FinalError, match="check URL, method, headers and proxy"):
            exchange("GET", "http://nowhere.invalid", None, {}, timeout=2, deadline=5, limit=LIMIT)


@pytest.mark.parametrize("headers", [{"X": "two\r\nlines"}, {"a:b": "c"}, {"X": "\u20ac"}])
def test_a_request_that_cannot_be_sent(headers: dict[str, str]) -> None:
    with raw(OK + b"\r\n") as server:
        with pytest.raises(FinalError, match="cannot be asked"):
            exchange("GET", server.url, None, headers, timeout=2, deadline=5, limit=LIMIT)
        with contextlib.suppress(OSError):
            socket.create_connection(server.listener.getsockname()).close()
