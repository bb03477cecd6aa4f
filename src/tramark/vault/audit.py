"""Everything that is wrong with a vault's files, in words.

The head, which nobody can forge without the key, says what the files must be. The remains of a killed process are no
fault: the head tells them from tampering.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from tramark.errors import BadProof, Damaged, VaultError
from tramark.evidence.commitment import verify_chain
from tramark.vault.commit import public_text, read_chain
from tramark.vault.head import CASES_LOCK, COMMIT_LOCK, GENESIS, HEAD, HEADER, LOCK, LOG, PUBLIC, SEALED, Head
from tramark.vault.lock import read_header
from tramark.vault.log import entry_of, line_hash, read_lines
from tramark.vault.storage import COMMITMENTS, SEALED_FILE, Storage


def audit(
    path: str | Path,
    *,
    passphrase: str | None = None,
    key_file: str | Path | None = None,
    prompt: Callable[[], str] | None = None,
) -> list[str]:
    """All that is wrong with the vault at `path`, also when it is too damaged to be opened."""
    try:
        opened = Storage.open(path, passphrase=passphrase, key_file=key_file, prompt=prompt, readonly=True)
        with closing(opened) as storage:
            return problems(storage)
    except Damaged as error:
        return [str(error)]


def problems(storage: Storage) -> list[str]:
    """All that is wrong with an open vault; empty if its files are what was written."""
    while True:
        head = storage.head()
        found = list(_problems(storage, head))
        # A writer in another process may have caused them: look again if the head has changed meanwhile.
        if not found or storage.head() == head:
            return found


def _problems(storage: Storage, head: Head) -> Iterator[str]:
    yield from _header_problems(storage)
    for name in head.sealed:
        try:
            for _ in storage.unseal(head, name):
                pass
        except Damaged as error:
            yield str(error)
    if (storage.path / LOG).is_file():
        yield from _log_problems(storage.path, head)
    yield from _commitment_problems(storage, head)
    yield from _strangers(storage.path)


def _header_problems(storage: Storage) -> Iterator[str]:
    for required in (HEADER, LOG, PUBLIC, LOCK):
        if not (storage.path / required).is_file():
            yield f"{required} is missing"
    try:
        if read_header(storage.path)["id"] != storage.id:
            yield f"{HEADER} belongs to another vault"
    except VaultError as error:
        yield str(error)


def _log_problems(path: Path, head: Head) -> Iterator[str]:
    pending, previous, number, length = head.pending, GENESIS, 0, 0
    for line in read_lines(path, head, everything=pending is None):
        entry = entry_of(line)
        found = number if entry is None else entry["n"]
        if entry is None:
            yield f"{LOG}: entry {number} was changed"
        elif found > number:
            yield f"{LOG}: entries {number} to {found - 1} were removed"
        elif found < number:
            yield f"{LOG}: entry {found} stands where entry {number} should: inserted or reordered"
        elif entry["previous"] != previous:
            yield f"{LOG}: entry {number - 1} was changed: it is not what entry {number} follows"
        previous, number, length = line_hash(line), found + 1, length + len(line)
    # A killed writer leaves the beginning of the pending lines, and nothing else.
    remains = _log_from(path, pending.offset) if pending else b""
    if length < head.length:
        yield f"{LOG}: the tail was cut off: of {head.entries} acknowledged entries {number} are there"
    elif length > head.length or (pending and not pending.lines.encode().startswith(remains)):
        yield f"{LOG}: something was added after the last of {head.entries} entries"
    elif previous != head.hash:
        yield f"{LOG}: the last entry was changed, or the whole chain was rewritten"


def _log_from(path: Path, offset: int) -> bytes:
    with (path / LOG).open("rb") as log:
        log.seek(offset)
        return log.read()


def _commitment_problems(storage: Storage, head: Head) -> Iterator[str]:
    try:
        chain = read_chain(b"".join(storage.unseal(head, COMMITMENTS)))
        public = (storage.path / PUBLIC).read_bytes()
    except (Damaged, OSError):
        # Reported already, as a damaged or a missing file.
        return
    unpublished = head.pending is not None and head.pending.publish
    texts = [public_text(chain[:count]) for count in range(1, len(chain) + 1)]
    if public not in (texts if unpublished else texts[-1:]):
        yield f"{PUBLIC} is not what was published"
    try:
        verify_chain([commitment for commitment, _ in chain])
    except BadProof as error:
        yield f"the sealed commitments do not hold: {error}"


def _strangers(path: Path) -> Iterator[str]:
    known = {HEADER, HEAD, LOG, PUBLIC, LOCK, CASES_LOCK, COMMIT_LOCK, SEALED}
    known |= {name + ".tmp" for name in known}
    strangers = [name for name in os.listdir(path) if name not in known]
    if (path / SEALED).is_dir():
        strangers += [f"{SEALED}/{name}" for name in os.listdir(path / SEALED) if not SEALED_FILE.fullmatch(name)]
    yield from (f"{name} does not belong to the vault" for name in sorted(strangers))
