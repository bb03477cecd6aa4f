"""Everybody's codewords as one compact array, made a slice of clients at a time."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tramark.keys.keyring import Keyring

CHUNK = 2**14
"""Clients whose codewords are made at a time: enough to be quick, few enough to fit in memory."""


def codebook_of(keyring: Keyring) -> NDArray[Any]:
    """Everybody's answers, clients × questions, in the smallest type that holds a label."""
    count = len(keyring.clients)
    book = np.empty((count, keyring.questions), dtype=np.min_scalar_type(keyring.classes - 1), order="F")
    for start in range(0, count, CHUNK):
        book[start : start + CHUNK] = keyring.codebook(clients=slice(start, start + CHUNK)).numpy()
    return book
