"""Write files so that a crash cannot damage them: the one atomic write of the project.

`replace_file` is for everybody (the vault, the lab, the command line); the vault alone needs the steps that it is
made of.
"""

import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Windows would translate line ends otherwise.
_BINARY = getattr(os, "O_BINARY", 0)

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""A flag of `os.open`: a symbolic link is not followed, so that nobody can direct a write elsewhere."""


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file as a whole, in place of an earlier one: a crash leaves the old file or the new one.

    Missing parent folders are created. When this returns, the disk has the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    put_in_place(prepare(path, data, mode), path)


def prepare(path: Path, data: bytes, mode: int = 0o600) -> Path:
    """The first half of `replace_file`: a synced file beside `path`. All that needs room on the disk is done then."""
    temporary = path.with_name(path.name + ".tmp")
    # A crash may have left one behind, with another mode.
    temporary.unlink(missing_ok=True)
    write_new(temporary, [data], mode)
    return temporary


def put_in_place(prepared: Path, path: Path) -> None:
    """The second half of `replace_file`."""
    os.replace(prepared, path)
    sync_directory(path.parent)


def write_new(path: Path, parts: Iterable[bytes], mode: int = 0o600) -> None:
    """Write a file that does not exist yet, and wait until the disk has it. If that fails, there is no file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def write_from(path: Path, offset: int, data: bytes) -> None:
    """Replace all that a file has from `offset` on by `data`, and wait until the disk has it."""
    with os.fdopen(os.open(path, os.O_RDWR | NO_LINK | _BINARY), "r+b") as file:
        file.truncate(offset)
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_regular(path: Path) -> bytes:
    """The content of a regular file. A link is not followed, and a pipe not waited for: they raise `OSError`."""
    with os.fdopen(os.open(path, os.O_RDONLY | NO_LINK | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()


def irregular(folder: Path) -> Iterator[str]:
    """The paths below a folder at which there is neither a regular file nor a folder: links, pipes, devices."""
    for parent, folders, files in os.walk(folder):
        for name in sorted(folders + files):
            path = Path(parent, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                # A writer in another process has just deleted it.
                continue
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                yield path.relative_to(folder).as_posix()


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
