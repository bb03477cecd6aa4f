"""One HTTP request and its response, bounded in time and size.

urllib3 does the talking. Its timeouts start anew with each byte, so a timer shuts the connection down at the
deadline, even if the server is still sending headers. The body is read in small pieces up to the limit, whatever
length the server announces. No redirect is followed, nothing is decompressed, and no connection is used twice.
"""

import logging
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from http.client import IncompleteRead
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers, parse_url

from tramark.errors import one_line

PIECE = 1 << 16

# urllib3 logs whole URLs, and some servers want their secrets there: while we ask, its loggers are silent.
_ASKING: ContextVar[bool] = ContextVar("asking", default=False)
for _name in ("urllib3.connection", "urllib3.connectionpool", "urllib3.response"):
    logging.getLogger(_name).addFilter(lambda _: not _ASKING.get())


class PassingError(Exception):
    """A failure that may pass; `wait` is how many seconds the server asks us to wait, `status` what it answers."""

    def __init__(self, what: str, wait: float = 0.0, status: int | None = None) -> None:
        super().__init__(what)
        self.wait, self.status = wait, status


class FinalError(Exception):
    """A failure that will not pass."""


def exchange(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    timeout: float,
    deadline: float,
    limit: int,
) -> tuple[BaseHTTPResponse, bytes]:
    """A response of any status, and its body.

    It must make progress within `timeout` seconds and be complete within `deadline` seconds; its body may have
    `limit` bytes.
    """
    octets = bytearray()
    with _until(deadline) as (over, watched):
        try:
            with _manager(url) as manager:
                pool = manager.connection_from_url(url)

                class Watched(pool.ConnectionCls):  # type: ignore[misc, name-defined]
                    def connect(self) -> None:
                        super().connect()
                        watched.append(self.sock)
                        if over.is_set():
                            raise TimeoutError

                pool.ConnectionCls = Watched
                response = manager.urlopen(
                    method,
                    url,
                    redirect=False,
                    body=body,
                    headers=headers,
                    timeout=timeout,
                    retries=False,
                    preload_content=False,
                    decode_content=False,
                )
                with response:
                    # read1 never reads more than a piece at once; read trusts a chunk that claims a size of -1.
                    while len(octets) <= limit and (piece := response.read1(PIECE)):
                        octets += piece
        except ValueError:
            raise FinalError("cannot be asked: check URL, method, headers and proxy") from None
        except (HTTPError, OSError) as error:
            if not over.is_set():
                raise _translated(error) from None
        # To a reader, a connection that was shut down looks like one that has ended.
        if over.is_set():
            raise PassingError(f"did not finish within {deadline:g} s")
    if len(octets) > limit:
        raise FinalError(f"answers with more than {limit} bytes: it is refused (response_bytes)")
    return response, bytes(octets)


def _translated(error: BaseException) -> FinalError | PassingError:
    """What the first cause of one of urllib3's errors means."""
    while inner := error.__cause__ or next((e for e in error.args if isinstance(e, BaseException)), None):
        error = inner
    if isinstance(error, ssl.SSLCertVerificationError):
        return FinalError(f"cannot prove who it is ({error.verify_message})")
    if isinstance(error, IncompleteRead):
        return PassingError("broke off in the middle of a response")
    text = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return PassingError(f"does not answer ({one_line(text)})")


@contextmanager
def _until(deadline: float) -> Iterator[tuple[threading.Event, list[Any]]]:
    """An event that is set at the deadline, and a list of connections that are then shut down."""
    over, watched = threading.Event(), list[Any]()

    def cut() -> None:
        over.set()
        for connection in watched:
            with suppress(OSError):
                # An SSLSocket's own shutdown would take its TLS state away from the thread that reads. Through a TLS
                # proxy, urllib3's connection is not a socket, but has one.
                socket.socket.shutdown(getattr(connection, "socket", connection), socket.SHUT_RDWR)

    timer = threading.Timer(deadline, cut)
    timer.daemon = True
    token = _ASKING.set(True)
    timer.start()
    try:
        yield over, watched
    finally:
        timer.cancel()
        _ASKING.reset(token)


def _manager(url: str) -> PoolManager:
    """Connections to the URL's server, through the proxy that the environment names for it, if any."""
    parts, context = urlsplit(url), ssl.create_default_context()
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc):
        return PoolManager(ssl_context=context)
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    login = parse_url(proxy).auth
    headers = make_headers(proxy_basic_auth=unquote(login)) if login else None
    return ProxyManager(proxy, proxy_headers=headers, ssl_context=context)
