"""Write files so that a crash cannot damage them: the one atomic write of the project.

`replace_file` is for everybody (the vault, the lab, the command line); the vault alone needs the steps that it is
made of.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Windows would translate line ends otherwise.
_BINARY = getattr(os, "O_BINARY", 0)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file as a whole, in place of an earlier one: a crash leaves the old file or the new one.

    Missing parent folders are created. When this returns, the disk has the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    # A crash may have left one behind, with another mode.
    temporary.unlink(missing_ok=True)
    write_new(temporary, [data], mode)
    os.replace(temporary, path)
    sync_directory(path.parent)


def write_new(path: Path, parts: Iterable[bytes], mode: int = 0o600) -> None:
    """Write a file that does not exist yet, and wait until the disk has it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the disk has a folder's entries: which files it holds, and under which names."""
    if os.name == "nt":
        # Windows cannot open a folder, and needs no such step.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pretty(value: Any) -> bytes:
    """JSON for people to read, always the same for the same value."""
    return json.dumps(value, sort_keys=True, indent=2).encode() + b"\n"
