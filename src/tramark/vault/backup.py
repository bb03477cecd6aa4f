"""A vault as one file, to keep elsewhere, and back again.

A backup is an ordinary tar file with all files of the vault as they are: what is sealed stays sealed, and opens with
the vault's own key, which is not in it. It can be made while another process writes to the vault. Restoring is an
entry of the log, because everything that happened after the backup is lost: models that were issued, cases that spent
error, questions that were burned.
"""

import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

from tramark.errors import Damaged, VaultBusy, VaultError
from tramark.vault.audit import problems
from tramark.vault.create import building_place, move_there
from tramark.vault.files import NO_LINK, sync_directory, write_new
from tramark.vault.head import PUBLIC
from tramark.vault.lock import find_key
from tramark.vault.seal import CHUNK
from tramark.vault.storage import SEALED_FILE, Storage
from tramark.vault.store import Vault

_TRIES = 1000
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def write_backup(vault: Vault, file: str | Path) -> tuple[int, str]:
    """Write all files of a vault into one new file, and check it; returns the head of the vault that it holds.

    The backup is unpacked and audited before it gets its name, so for a moment the disk needs twice the room.
    """
    file = Path(file)
    if file.exists() or file.is_symlink():
        raise VaultError(f"{file} exists already: a backup replaces no file")
    if vault.path.resolve() in file.resolve().parents:
        raise VaultError(f"{file} is inside the vault: keep a backup elsewhere")
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with ExitStack() as undo:
            undo.callback(temporary.unlink, missing_ok=True)
            _pack(vault.path, temporary)
            head = _checked(vault.storage, temporary)
            os.rename(temporary, file)
        sync_directory(file.parent)
    except OSError as error:
        raise VaultError(f"the backup {file} cannot be written: {error.strerror or error}") from error
    return head


def restore(
    file: str | Path,
    path: str | Path,
    *,
    passphrase: str | None = None,
    key_file: str | Path | None = None,
    prompt: Callable[[], str] | None = None,
) -> Vault:
    """Make the vault of a backup anew at `path`, where there must be none, and open it for writing.

    The key is the one that the vault had when the backup was made; it is found as for `Vault.open`. The log gets an
    entry that says from which head the vault was restored.
    """
    path = Path(path)
    building = building_place(path)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, building, ignore_errors=True)
        _unpack(Path(file), building)
        source = find_key(path, passphrase=passphrase, key_file=key_file, prompt=prompt, header=building)
        storage = Storage.open(building, passphrase=source.passphrase, key_file=source.key_file)
        undo.callback(storage.close)
        if found := problems(storage):
            raise Damaged(f"the backup {file} is damaged: {'; '.join(found)}")
        head = storage.head()
        storage.commit([{"event": "restored", "entries": head.entries, "head": head.hash}], {})
        move_there(storage, path)
        undo.pop_all()
    return Vault(storage)


class _Member(NamedTuple):
    """A file of the vault as it was at one moment: its path in the vault, its size and its content."""

    name: str
    size: int
    content: IO[bytes]


def _pack(path: Path, file: Path) -> None:
    with _snapshot(path) as members, os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for member in members:
                described = tarfile.TarInfo(member.name)
                described.size, described.mode = member.size, _mode(member.name)
                archive.addfile(described, member.content)
        out.flush()
        os.fsync(out.fileno())


@contextmanager
def _snapshot(path: Path) -> Iterator[list[_Member]]:
    """All files of a vault as they were at one moment, while another process may write to it."""
    for _ in range(_TRIES):
        with ExitStack() as opened:
            try:
                before = _listing(path)
                members = [_member(path, name, opened) for name in before]
                same = _listing(path) == before
            except FileNotFoundError:
                # A writer has just replaced it.
                continue
            if same:
                yield members
                return
    raise VaultBusy(f"the vault {path} changes all the time: make the backup when less is written to it")


def _member(path: Path, name: str, opened: ExitStack) -> _Member:
    file = os.fdopen(os.open(path / name, os.O_RDONLY | NO_LINK), "rb")
    size = os.fstat(file.fileno()).st_size
    if size > CHUNK and SEALED_FILE.fullmatch(Path(name).name):
        # Never changed, only deleted, and an open file outlives that: there is no need to have it in memory.
        return _Member(name, size, opened.enter_context(file))
    with file:
        content = file.read()
    return _Member(name, len(content), io.BytesIO(content))


def _listing(path: Path) -> dict[str, tuple[int, int, int]]:
    """The files of a vault with what changes if they do. Unfinished ones are left out, as no head knows them."""
    found = {}
    for parent, _, names in os.walk(path):
        for file in (Path(parent, name) for name in names if not name.endswith(".tmp")):
            status = file.lstat()
            found[file.relative_to(path).as_posix()] = status.st_ino, status.st_size, status.st_mtime_ns
    return dict(sorted(found.items()))


def _checked(storage: Storage, file: Path) -> tuple[int, str]:
    """The head of a backup of a vault; `Damaged` unless the backup can be restored and audits clean."""
    with TemporaryDirectory(prefix=f"{file.name}.", dir=file.parent) as folder:
        place = Path(folder, "vault")
        _unpack(file, place)
        with closing(storage.copy_at(place)) as copy:
            if found := problems(copy):
                raise Damaged(f"there is no backup, as the vault or the disk is damaged: {'; '.join(found)}")
            head = copy.head()
            return head.entries, head.hash


def _unpack(file: Path, folder: Path) -> None:
    """Write the files of a backup into a new folder. A backup may come from anywhere: nothing is written elsewhere."""
    folder.mkdir(mode=0o700)
    try:
        with tarfile.open(file, mode="r:") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if content is None or not _NAME.fullmatch(member.name):
                    raise Damaged(f"{file} is not the backup of a vault: it holds other things than a vault's files")
                place = folder / member.name
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_new(place, iter(partial(content.read, CHUNK), b""), _mode(member.name))
    except (tarfile.TarError, FileExistsError, NotADirectoryError):
        raise Damaged(f"{file} is not the backup of a vault, or is damaged") from None
    for parent, _, _ in os.walk(folder):
        sync_directory(Path(parent))


def _mode(name: str) -> int:
    return 0o644 if name == PUBLIC else 0o600
