"""Everybody's codewords as one compact array, made a slice of clients at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tramark.keys.keyring import Keyring

CHUNK = 2**14
"""Clients whose codewords are made at a time: enough to be quick, few enough to fit in memory."""


def codebook_of(keyring: Keyring, questions: Sequence[int] | None = None) -> NDArray[Any]:
    """Everybody's answers to the questions in use, or to others: clients × questions, in the smallest type."""
    count, questions = len(keyring.clients), keyring.chosen if questions is None else questions
    book = np.empty((count, len(questions)), dtype=np.min_scalar_type(keyring.classes - 1), order="F")
    for start in range(0, count, CHUNK):
        book[start : start + CHUNK] = keyring.codebook(questions, clients=slice(start, start + CHUNK)).numpy()
    return book


def burned_rows(keyring: Keyring, burned: Mapping[str, Sequence[int]]) -> dict[int, NDArray[np.intp]]:
    """By question, the rows of the clients for whom it is burned."""
    rows: dict[int, list[int]] = {}
    for row, client in enumerate(keyring.clients if burned else ()):
        for question in burned.get(client, ()):
            rows.setdefault(question, []).append(row)
    return {question: np.array(found, dtype=np.intp) for question, found in rows.items()}
