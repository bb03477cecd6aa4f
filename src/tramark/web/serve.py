"""Starts the desk: a server on this machine alone, at an address that only its owner is told."""

import socket
from collections.abc import Callable
from contextlib import closing

import uvicorn

from tramark.errors import SettingError
from tramark.web.desk import Desk, Openers
from tramark.web.guard import Guard
from tramark.web.pages import Pages

HOST = "127.0.0.1"


def serve(openers: Openers, *, port: int, largest: int, ready: Callable[[str], None]) -> None:
    """Serves the desk until it is interrupted.

    Parameters
    ----------
    port : where to listen; 0 for any free port.
    largest : the largest upload, in bytes.
    ready : is called with the address, which holds the token, once the desk answers.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as error:
            raise SettingError(f"cannot listen at port {port}: {error.strerror}. Give another --port") from None
        found = listening.getsockname()[1]
        desk = Desk(openers)
        try:
            guard = Guard(Pages(desk, largest).app(), port=found, largest=largest)
            # No access log: the first address holds the token.
            config = uvicorn.Config(
                guard, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2
            )
            listening.listen()
            ready(f"http://{HOST}:{found}/?token={guard.token}")
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            desk.close()
