"""Everything that is wrong with a vault's files, in words.

The head, which nobody can forge without the key, says what the files must be. The remains of a killed process are no
fault: the head tells them from tampering.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

from tramark.errors import BadProof, Damaged, VaultError
from tramark.evidence.commitment import Commitment, verify_chain
from tramark.evidence.settled import Settled
from tramark.vault.commit import Chain, public_text, read_chain
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
    try:
        chain = read_chain(b"".join(storage.unseal(head, COMMITMENTS)))
    except Damaged:
        chain = []  # Reported already, as a damaged file.
    if (storage.path / LOG).is_file():
        yield from _log_problems(storage.path, head, [commitment for commitment, _ in chain])
    if chain:
        yield from _commitment_problems(storage, head, chain)
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


def _log_problems(path: Path, head: Head, links: Sequence[Commitment]) -> Iterator[str]:
    pending, found = head.pending, _Lines(head.entries, Settled(links) if links else None)
    for line in read_lines(path, head, everything=pending is None):
        if not found.read(line):
            break
    yield from (f"{LOG}: {problem}" for problem in found.problems())
    # A killed writer leaves the beginning of the pending lines, and nothing else.
    remains = _log_from(path, pending.offset) if pending else b""
    if found.expected < head.entries:
        yield f"{LOG}: the tail was cut off: of {head.entries} acknowledged entries {found.there} are there"
    elif found.more or (pending and not pending.lines.encode().startswith(remains)):
        yield f"{LOG}: something was added after the last of {head.entries} entries"
    elif found.previous not in (None, head.hash):
        yield f"{LOG}: the last entry was changed, or the whole chain was rewritten"
    elif found.order is not None and found.order.late:
        yield f"{LOG}: {found.order.late}"


class _Lines:
    """The lines of a log of so many acknowledged entries, read one after the other, and what is wrong with them."""

    def __init__(self, entries: int, order: Settled | None) -> None:
        self.order = order
        self.entries, self.expected, self.there, self.more = entries, 0, 0, False
        self.previous: str | None = GENESIS
        self._found: list[str] = []
        self._missing: dict[int, None] = {}

    def read(self, line: bytes) -> bool:
        """Read a line; False if it is no acknowledged one, and nothing can be said of those that follow."""
        self.more = self.expected == self.entries
        if self.more or not line.endswith(b"\n"):
            return False
        entry, expected = entry_of(line), self.expected
        number = expected if entry is None else entry["n"]
        self.there += 1
        if entry is None or not 0 <= number < self.entries:
            self._found.append(f"entry {expected} was changed")
            self.expected, self.previous = expected + 1, None
            return True
        if number < expected:
            self._found.append(f"entry {number} stands where entry {expected} should: inserted or reordered")
            self._missing.pop(number, None)
            self.previous = None
            return True
        self._missing |= dict.fromkeys(range(expected, number))
        if number == expected and self.previous is not None and entry["previous"] != self.previous:
            self._found.append(f"entry {number - 1} was changed: it is not what entry {number} follows")
        self.expected, self.previous = number + 1, line_hash(line)
        if self.order is not None:
            self.order.read(entry)
        return True

    def problems(self) -> list[str]:
        """What is wrong with the lines that were read."""
        return self._found + [
            f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
            for first, last in _runs(self._missing)
        ]


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of consecutive numbers."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield members[0], members[-1]


def _log_from(path: Path, offset: int) -> bytes:
    with (path / LOG).open("rb") as log:
        log.seek(offset)
        return log.read()


def _commitment_problems(storage: Storage, head: Head, chain: Chain) -> Iterator[str]:
    try:
        public = (storage.path / PUBLIC).read_bytes()
    except OSError:
        return  # Reported already, as a missing file.
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
