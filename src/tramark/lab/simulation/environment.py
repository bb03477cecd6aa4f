"""Processes with one thread each: the environment in which they are started, and their end."""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Memory that a step frees stays with the process (glibc alone reads this): mapping it anew at every step costs the CNN
# a tenth of its time.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}


@contextmanager
def single_threaded() -> Iterator[None]:
    """Processes that are started within the block compute with one thread. What a user has set already stays."""
    ours = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def end_with_parent() -> None:
    """From now on this process ends when the one that started it does, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
