"""Who may use the desk: the browser that was given the token, on this machine, and no other page in it.

The token in the URL becomes a cookie that no script and no other site can use. Every request must name this server as
its host, so that no other name can be made to lead here (DNS rebinding); every request that changes something must
come from the desk's own pages and carry their form token. Bodies are limited, and every response forbids scripts,
styles, pictures and frames from anywhere else.
"""

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORM_BYTES = 1 << 20
"""The largest body of a request, beyond an uploaded file."""

_REFUSED = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{title}</title><link rel="stylesheet" href="/static/report.css"><link rel="stylesheet" href="/static/web.css">
<body class="inconclusive"><main><header><p class="kind">Not let in</p><h1>{title}</h1>
<p class="lead">{words}</p></header></main></body></html>"""


class Guard:
    """Stands before the desk's application, and lets nobody through but its owner.

    Parameters
    ----------
    port : the port at which the desk listens.
    largest : the largest upload, in bytes.
    """

    def __init__(self, app: ASGIApp, *, port: int, largest: int) -> None:
        self.app, self.largest = app, largest
        self.token, self._session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.form_token = secrets.token_urlsafe(32)
        # Cookies do not tell ports apart: two desks must not take each other's.
        self.cookie = f"tramark-{port}"
        self.hosts = tuple(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            return await refusal(scope, receive, sending)
        limit = FORM_BYTES + (self.largest if scope["path"] == "/traces" else 0)
        await self.app({**scope, "guard": self, "form_token": self.form_token}, _limited(receive, limit), sending)

    def _refusal(self, scope: Scope) -> Response | None:
        """The response to whom is not let in; None for whoever is."""
        headers, path = Headers(scope=scope), scope["path"]
        if headers.get("host", "") not in self.hosts:
            return _refused(421, "This is not the desk’s address", "Open the address that tramark web printed.")
        if path.startswith("/static/") and scope["method"] == "GET":
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if path == "/" and given and scope["method"] == "GET" and _same(given, self.token):
            welcome = RedirectResponse("/", 303)
            welcome.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
            return welcome
        if not _same(_cookie(headers, self.cookie), self._session):
            words = "The address needs the token that tramark web printed when it started. Copy the whole line."
            return _refused(403, "This desk is somebody else’s", words)
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin", "")
            foreign = origin not in ("", *(f"http://{host}" for host in self.hosts))
            if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return _refused(403, "That came from another page", "The desk takes orders from its own pages alone.")
        length = headers.get("content-length", "0")
        limit = FORM_BYTES + (self.largest if path == "/traces" else 0)
        if not length.isdecimal() or int(length) > limit:
            return _refused(413, "That file is too large", too_large(self.largest))
        return None

    def owns(self, given: str) -> bool:
        """Whether a form carries the token of the desk's own pages."""
        return _same(given, self.form_token)


class TooLarge(Exception):  # noqa: N818
    """A body that grew beyond the limit while it was read."""


def too_large(largest: int) -> str:
    """What to do about a file that is too large."""
    return (
        f"Up to {largest >> 20:,} MiB are taken here. Trace larger files at the command line, or start the desk with "
        f"another --largest-upload."
    )


def _limited(receive: Receive, limit: int) -> Receive:
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > limit:
            raise TooLarge
        return message

    return limited


def _refused(status: int, title: str, words: str) -> Response:
    return HTMLResponse(_REFUSED.format(title=title, words=words), status)


def _cookie(headers: Headers, name: str) -> str:
    try:
        return morsel.value if (morsel := SimpleCookie(headers.get("cookie", "")).get(name)) else ""
    except CookieError:
        return ""


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
