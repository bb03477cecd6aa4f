"""Models that misbehave when they are asked: what a stranger's file could do if it got hold of its process."""

import ctypes
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HELD, REACHED = 0, 1


class Prober(nn.Module):
    """Tries what the first pixel of its input says, and answers 1 if it could."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.secret = Path(secret)

    def forward(self, x: Tensor) -> Tensor:
        number = round(float(x.flatten()[0]))
        try:
            reached = bool(list(ATTEMPTS.values())[number](self.secret))
        except (OSError, subprocess.SubprocessError, ValueError, RuntimeError):
            reached = False
        return nn.functional.one_hot(torch.full((len(x),), int(reached)), 2).float()


def _syscall(number: int, *arguments: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(number, *(ctypes.c_long(one) for one in arguments)) >= 0)


def _fork(_: Path) -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True


def _parents_memory(_: Path) -> bool:
    with Path(f"/proc/{os.getppid()}/mem").open("rb") as memory:
        return memory is not None


def _environment(_: Path) -> bool:
    return "TRAMARK_PASSPHRASE" in os.environ


def _done(act: Callable[..., object], *arguments: Any) -> bool:
    act(*arguments)
    return True


def _write(secret: Path) -> bool:
    with (secret.parent / "written").open("wb") as file:
        file.write(b"x")
    return True


ATTEMPTS: dict[str, Callable[[Path], Any]] = {
    "read a secret": lambda secret: secret.read_bytes(),
    "list its folder": lambda secret: list(secret.parent.iterdir()),
    "write a file": _write,
    "delete a file": lambda secret: _done(secret.unlink),
    "rename a file": lambda secret: secret.rename(secret.with_name("other")),
    "make a folder": lambda secret: _done((secret.parent / "made").mkdir),
    "change its mode": lambda secret: _done(secret.chmod, 0o777),
    "open a socket": lambda _: socket.socket(),
    "start a program": lambda _: subprocess.run(["/bin/true"], check=True),
    "fork": _fork,
    "signal its parent": lambda _: _done(os.kill, os.getppid(), 0),
    "read its parent's memory": _parents_memory,
    "read its parent's environment": lambda _: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "trace its parent": lambda _: _syscall(101, 0x4206, os.getppid(), 0, 0),
    "copy its parent's memory": lambda _: _syscall(310, os.getppid(), 0, 0, 0, 0, 0),
    "find a passphrase": _environment,
    "use shared memory": lambda _: _syscall(29, 1, 4096, 0o1666),
    "leave its namespaces": lambda _: _syscall(272, 0x10000000),
}


class Wrecker(nn.Module):
    """Comes to a bad end in the way that it was made for, the second time it is asked."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.way, self.calls = way, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            WAYS[self.way]()
        return torch.eye(10)[:1].repeat(len(x), 1)


def _replies() -> int:
    """The pipe that goes back to the parent: the last of the process's pipes."""
    pipes = [fd for fd in range(3, 32) if _is_pipe(fd)]
    return max(pipes)


def _is_pipe(descriptor: int) -> bool:
    try:
        return (os.fstat(descriptor).st_mode & 0o170000) == 0o010000
    except OSError:
        return False


def _send(octets: bytes) -> None:
    os.write(_replies(), octets)
    time.sleep(60)


def _framed(header: bytes, body: bytes = b"", length: int | None = None) -> None:
    _send(struct.pack(">IQ", len(header), len(body) if length is None else length) + header + body)


def _greedy() -> None:
    kept = []
    while True:
        kept.append(torch.ones(1 << 26))


def _overwrite() -> None:
    address = torch.zeros(16).data_ptr()
    for distance in range(1 << 12, 1 << 44, 1 << 28):
        ctypes.memset(address + distance, 0xFF, 1 << 16)


WAYS: dict[str, Callable[[], Any]] = {
    "segfault": lambda: ctypes.string_at(0),
    "write out of bounds": _overwrite,
    "abort": os.abort,
    "exit": lambda: os._exit(0),
    "kill itself": lambda: signal.raise_signal(signal.SIGKILL),
    "hang": lambda: time.sleep(60),
    "hoard memory": _greedy,
    "endless reply": lambda: _framed(b'{"dtype": "float32", "shape": [1, 10]}', length=2**60),
    "endless header": lambda: _send(struct.pack(">IQ", 2**32 - 1, 0)),
    "no JSON": lambda: _framed(b"__import__('os')"),
    "deep JSON": lambda: _framed(b"[" * 100_000),
    "a list": lambda: _framed(b"[]"),
    "nothing in it": lambda: _framed(b"{}"),
    "wrong size": lambda: _framed(b'{"dtype": "float32", "shape": [1, 10]}', b"1234"),
    "negative size": lambda: _framed(b'{"dtype": "float32", "shape": [-1, -1]}', b"1234"),
    "giant size": lambda: _framed(b'{"dtype": "float32", "shape": [1099511627776, 0]}' + b" " * 9),
    "unknown type": lambda: _framed(b'{"dtype": "object", "shape": [1]}', b"12345678"),
    "names that are none": lambda: _framed(b'{"names": [{"a": 1}]}'),
    "half a message": lambda: _send(b"\0\0"),
}


def wrecker(way: str) -> nn.Module:
    """A model that comes to that end."""
    return Wrecker(way)
