"""Images as PNG files, for JSON APIs and reports.

Written by hand because it takes a dozen lines: neither the product nor its reports need an image library otherwise.
"""

import struct
import zlib

import torch
from torch import Tensor

from tramark.errors import SuspectError


def png(image: Tensor) -> bytes:
    """A PNG file of a C×H×W image of bytes, grey or RGB.

    >>> png(torch.zeros(1, 2, 2, dtype=torch.uint8))[:4]
    b'\\x89PNG'
    """
    channels, height, width = image.shape
    if channels not in (1, 3):
        raise SuspectError(f"an image of {channels} channels cannot be sent as PNG: say colour grey or rgb")
    rows = image.cpu().movedim(0, -1).reshape(height, width * channels)
    # The first byte of each row is its filter: 0, none.
    scanlines = torch.cat([rows.new_zeros(height, 1), rows], dim=1).numpy().tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(scanlines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
