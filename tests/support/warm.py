"""A process that has torch loaded, and forks for each program that is to run. It saves seconds for every command.

It is given the path of a socket to listen at. A request is a JSON object (`words`, `folder`, `environment`) and the
three files that are to be the program's input, output and errors; the reply is its exit code. The first word says what
to run: `tramark`, or the path of a Python file.
"""

import json
import os
import runpy
import signal
import socket
import sys
import traceback
from typing import Any

LARGEST = 1 << 20


def serve(path: str) -> None:
    # Loaded once for all: what most commands need. The laboratory is left out, as it looks for plug-ins when loaded.
    import numpy  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch

    import tramark.cli
    import tramark.server
    import tramark.tracing.trace
    import tramark.vault.store  # noqa: F401

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            text, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
            if os.fork() == 0:
                listener.close()
                _run(connection, json.loads(text), files)
            connection.close()
            for file in files:
                os.close(file)


def _run(connection: socket.socket, request: dict[str, Any], files: list[int]) -> None:
    """Be the program that was asked for, and never return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 70
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[:0] = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        sys.argv = request["words"]
        code = _ended()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(str(code).encode())
        os._exit(0)


def _ended() -> int:
    try:
        if sys.argv[0] == "tramark":
            from tramark.cli import main

            main()
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def ask(path: str, words: list[str], folder: str, environment: dict[str, str]) -> int:
    """Run a program in a fork of the process that listens at `path`, with this process's own input and output."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        request = json.dumps({"words": words, "folder": folder, "environment": environment}).encode()
        socket.send_fds(connection, [request], [0, 1, 2])
        return int(connection.recv(16) or b"70")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:], os.getcwd(), dict(os.environ)))
