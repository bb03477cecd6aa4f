"""vault.files"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_synced(path: Path, parts: Iterable[bytes], *, flags: int = os.O_TRUNC, mode: int = 0o600) -> None:
    """Write a file and wait until the disk has it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Put a file in the place of another, so that there always is the one or the other."""
    temporary = path.with_name(path.name + ".tmp")
    write_synced(temporary, [data], mode=mode)
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pretty(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, indent=2).encode() + b"\n"
