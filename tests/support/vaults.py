"""What disturbs a vault: a writer that is killed, and a disk without room. For POSIX systems."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tramark.vault.log import issued
from tramark.vault.store import Vault


@contextmanager
def writer(path: Path, acknowledged: Path) -> Iterator[int]:
    """A process that issues round after round, says so when the vault has it, and is killed in the end."""
    process = os.fork()
    if process == 0:
        try:
            with Vault.open(path) as vault, acknowledged.open("ab", buffering=0) as tell:
                number = vault.head[0]
                while True:
                    model = f"{number:064x}"
                    entries = [issued(number, client, model) for client in ("alice", "bob")]
                    vault.record(entries, {"checkpoint": model.encode() * 50})
                    tell.write(f"{number}\n".encode())
                    number += 2
        finally:
            os._exit(1)
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), "the writer ended by itself"


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """The operating system lets no file grow beyond `size` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
