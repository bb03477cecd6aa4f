"""The environment in which processes with one thread each are started."""

import os
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
