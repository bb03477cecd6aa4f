"""Messages between a suspect's own process and ours: a JSON header and raw bytes, over pipes.

Nothing here can run code: a message is numbers, text and tensors. The reader decides how long a message may be and
how long it may take; whatever does not fit is a `WireError`.
"""

import json
import math
import os
import select
import struct
import time
from typing import Any

import torch
from torch import Tensor

HEADER_BYTES = 1 << 20
LENGTHS = struct.Struct(">IQ")
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
}


class WireError(Exception):
    """A message that did not come, did not come in time, or is none."""


def send(pipe: int, header: dict[str, Any], tensor: Tensor | None = None, *, until: float = math.inf) -> None:
    """Writes a message, by `until` (of time.monotonic). A pipe with a deadline must not block."""
    body = b""
    if tensor is not None:
        header = header | {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        body = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    head = json.dumps(header).encode()
    rest = memoryview(LENGTHS.pack(len(head), len(body)) + head + body)
    while rest:
        _wait(pipe, select.POLLOUT, until)
        try:
            rest = rest[os.write(pipe, rest) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise WireError("is gone") from error


def receive(pipe: int, limit: int, *, until: float = math.inf) -> tuple[dict[str, Any], Tensor | None]:
    """The next message, with a tensor of at most `limit` bytes, by `until` (of time.monotonic)."""
    head, body = LENGTHS.unpack(_exactly(pipe, LENGTHS.size, until))
    if head > HEADER_BYTES or body > limit:
        raise WireError(f"sends {max(head, body)} bytes where {HEADER_BYTES if head > HEADER_BYTES else limit} may be")
    try:
        header = json.loads(bytes(_exactly(pipe, head, until)))
    except (ValueError, RecursionError):
        raise WireError("sends something that is no message") from None
    octets = _exactly(pipe, body, until)
    if not isinstance(header, dict):
        raise WireError("sends something that is no message")
    return header, _tensor(header, octets) if "dtype" in header else None


def _tensor(header: dict[str, Any], octets: bytearray) -> Tensor:
    match header:
        case {"dtype": str(name), "shape": [*shape]} if name in DTYPES and len(shape) < 9:
            dtype = DTYPES[name]
            if not all(type(n) is int and 0 <= n < 2**40 for n in shape):
                raise WireError("sends a tensor that is none")
        case _:
            raise WireError("sends a tensor that is none")
    if math.prod(shape) * dtype.itemsize != len(octets):
        raise WireError("sends a tensor that is none")
    if not octets:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(octets, dtype=torch.uint8)
    # A byte other than 0 or 1 is no bool, and torch may do anything with it.
    return (flat != 0).view(shape) if dtype == torch.bool else flat.view(dtype).view(shape)


def _exactly(pipe: int, count: int, until: float) -> bytearray:
    """That many bytes; memory is taken as they come, whatever the length that was announced."""
    octets = bytearray()
    while len(octets) < count:
        _wait(pipe, select.POLLIN, until)
        try:
            piece = os.read(pipe, min(count - len(octets), 1 << 20))
        except BlockingIOError:
            continue
        if not piece:
            raise WireError("is gone")
        octets += piece
    return octets


def _wait(pipe: int, event: int, until: float) -> None:
    if until == math.inf:
        return
    poller = select.poll()
    poller.register(pipe, event)
    if not poller.poll(max(0.0, until - time.monotonic()) * 1000):
        raise TimeoutError
