"""The vault: one directory that holds a federation's secrets and remembers what was issued to whom.

Secrets (the keyring, the signing key, the server's state) are sealed under a random data key, which is itself wrapped
by a key from a passphrase or a key file. The log of what was issued is hash-chained and readable by anybody.
`Storage` keeps both so that a crash loses nothing; here is what a federation does with them. `docs/reference/vault.md`
has the files, the argument and the threat model.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tramark.errors import NoKey, VaultError
from tramark.evidence.beacon import Beacon, beacon_key
from tramark.evidence.commitment import Commitment, canonical
from tramark.evidence.dsse import Envelope
from tramark.evidence.premise import Premise
from tramark.vault import checkpoints, commit, signing
from tramark.vault.audit import problems
from tramark.vault.branches import tensor_digest
from tramark.vault.cases import BOOK, Cases, is_case
from tramark.vault.changes import beacons_after, changes
from tramark.vault.checkpoints import REPORTS
from tramark.vault.create import new_vault
from tramark.vault.lock import find_key
from tramark.vault.log import Entry, issued, read_entries, set_back
from tramark.vault.reports import Report, premise_of, with_report
from tramark.vault.storage import COMMITMENTS, KEYRING, NAME, SIGNING, Storage

if TYPE_CHECKING:
    from torch import Tensor

    from tramark.fleet.layout import State
    from tramark.keys.keyring import Keyring
    from tramark.suspects.reference import Reference

REFERENCE = "reference"


class Vault:
    """A federation's secrets and its log of issued models, sealed in one directory.

    >>> import tempfile; from tramark.keys.keyring import Keyring
    >>> from tramark.vault.lock import default_key_file, make_key_file
    >>> ring = Keyring.generate(clients=["alice", "bob"], classes=10, input_shape=(1, 8, 8), pool=32)
    >>> path = Path(tempfile.mkdtemp()) / "vault"
    >>> with Vault.create(path, ring, key_file=make_key_file(default_key_file(path))) as vault:
    ...     vault.record([issued(1, "alice", "0" * 64), issued(1, "bob", "1" * 64)])
    >>> with Vault.open(path) as vault:    # finds the key file beside it
    ...     vault.keyring == ring, vault.audit(), [entry["event"] for entry in vault.log()]
    (True, [], ['created', 'issued', 'issued'])

    One process may write to a vault at a time; any number may read it meanwhile.
    """

    def __init__(self, storage: Storage, images: "tuple[Tensor, Tensor] | None" = None) -> None:
        self.storage, self._images = storage, images
        self._keyring: tuple[str, Keyring] | None = None

    def __repr__(self) -> str:
        return f"<Vault {self.path} ({self.storage.state})>"

    @property
    def path(self) -> Path:
        """The vault's directory."""
        return self.storage.path

    @property
    def id(self) -> str:
        """The vault's id, which its commitments name."""
        return self.storage.id

    @classmethod
    def create(
        cls,
        path: str | Path,
        keyring: "Keyring",
        *,
        passphrase: str | None = None,
        key_file: str | Path | None = None,
        simulated: bool = False,
    ) -> Self:
        """Make a vault for a keyring, with its signed commitment, and open it for writing.

        The key comes from `find_key`. `simulated` says for good, in the log and in every commitment, that the keyring's
        secret comes from a seed, so that nothing is proven by it.
        """
        from tramark.keys.pictures import images_of

        path = Path(path)
        source = find_key(path, passphrase=passphrase, key_file=key_file)
        storage = new_vault(path, keyring, source, simulated=simulated)
        vault = cls(storage, images_of(keyring.source))
        # With a million clients, a copy of their names counts.
        vault._keyring = storage.head().sealed[KEYRING], keyring
        return vault

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        passphrase: str | None = None,
        key_file: str | Path | None = None,
        prompt: Callable[[], str] | None = None,
        readonly: bool = False,
        images: "tuple[Tensor, Tensor] | None" = None,
    ) -> Self:
        """Open a vault with a key from `find_key`, for writing unless `readonly`.

        Opening for writing finishes what a killed process had decided and deletes what it had not. `images` are needed
        for the keyring alone, and only when its questions come from an image set.
        """
        storage = Storage.open(path, passphrase=passphrase, key_file=key_file, prompt=prompt, readonly=readonly)
        return cls(storage, images)

    def close(self) -> None:
        """Forget the key and let others write."""
        self._keyring = None
        self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def keyring(self) -> "Keyring":
        """The keyring as last saved."""
        from tramark.keys.keyring import Keyring

        version = self.storage.head().sealed[KEYRING]
        if self._keyring is None or self._keyring[0] != version:
            self._keyring = version, Keyring.from_dict(self.sealed_keyring, images=self._images)
        return self._keyring[1]

    def use_images(self, images: "tuple[Tensor, Tensor]") -> None:
        """Give the images and labels of which the questions are made, if they come from an image set."""
        self._images, self._keyring = images, None

    @property
    def sealed_keyring(self) -> dict[str, Any]:
        """The keyring as plain values, for when its questions' images must be found first. Secret."""
        return json.loads(self.storage.get(KEYRING))  # type: ignore[no-any-return]

    def save_keyring(
        self,
        keyring: "Keyring",
        blobs: Mapping[str, bytes] | None = None,
        *,
        beacon: Beacon | None = None,
        drop: Collection[str] = (),
    ) -> None:
        """Keep a keyring in which clients joined or left, or questions of the pool were chosen or retouched.

        The log says what changed, and new clients or other questions get a further signed commitment. `blobs` are put
        with it, and those in `drop` deleted, all or nothing. If the commitment names a `beacon`, answers wait until its
        value is revealed.
        """
        blobs = dict(blobs or {})
        with self.storage.mutex:
            if beacon is None and self._keeps(keyring):
                self.storage.commit([], blobs, drop=drop)
                return
            old, new = self.sealed_keyring, json.loads(canonical(keyring.to_dict()))
            committed, noted, retouched = changes(old, new)
            beacons = beacons_after(old, new, committed, named=beacon is not None)
            new = {name: new[name] for name in new if name != "beacons"} | ({"beacons": beacons} if beacons else {})
            if committed or noted:
                blobs[KEYRING] = canonical(new)
            del old, new  # With a million clients, two copies of their names count.
            chain = None
            if committed:
                self._check_choice(committed)
                chain = signing.commit_again(self.storage, keyring, retouched=retouched, beacon=beacon)
                committed = [event | {"commitment": chain[-1][0].digest} for event in committed]
            if blobs:
                self.storage.commit([*committed, *noted], blobs, publish=chain, drop=drop)
            if [list(one) for one in keyring.beacons] == beacons:
                self._keyring = self.storage.head().sealed[KEYRING], keyring

    def _check_choice(self, committed: Iterable[Entry]) -> None:
        """Raise `VaultError` if other questions are chosen when models have marks for those that were chosen before."""
        if not any(event["event"] == "questions-chosen" for event in committed) or not self.commitments[-1].answers:
            return
        if any(entry["event"] == "issued" and entry.get("marked") for entry in self.log()):
            raise VaultError(
                "models were issued with marks for other questions, and could no longer be traced: `resume` the server "
                "that issued them, or make a new vault"
            )

    def _keeps(self, keyring: "Keyring") -> bool:
        """Whether this is the keyring as last saved. To compare a million names as plain values takes seconds."""
        if self._keyring is None or self._keyring[0] != self.storage.head().sealed[KEYRING]:
            return False
        kept = self._keyring[1]
        return (kept.fingerprint, kept.clients, kept.departed) == (
            keyring.fingerprint,
            keyring.clients,
            keyring.departed,
        )

    def reveal(self, value: bytes) -> None:
        """Add the value of the beacon that the last commitment with one names to the answers that wait for it."""
        with self.storage.mutex:
            plain, links = self.sealed_keyring, [link for link in self.commitments if link.beacon]
            waiting = [entry for entry in plain.get("beacons", []) if not entry[1]]
            if not waiting:
                raise VaultError("no answers wait for the value of a beacon")
            waiting[-1][1] = beacon_key(value, links[-1].digest).hex()
            revealed = {"event": "beacon-revealed", "commitment": links[-1].digest, "value": value.hex()}
            self.storage.commit([revealed], {KEYRING: canonical(plain)})

    def save(
        self,
        keyring: "Keyring",
        state: Mapping[str, Any],
        report: Mapping[str, Any] | None = None,
        reference: "Reference | None" = None,
    ) -> None:
        """Keep a server's keyring, its `state_dict()`, its last round's report and its base's answers to public inputs.

        All or nothing is kept. A few earlier states are kept, too: see `checkpoints`.
        """
        from tramark.vault.packing import pack

        reports = {} if report is None else {REPORTS: with_report(self.reports(), report)}
        answers = {} if reference is None else {REFERENCE: pack({"reference": reference.to_dict()})}
        round = int(state["round"])
        gone = checkpoints.dropped(self.names, round)
        self.save_keyring(keyring, {checkpoints.name_of(round): pack(state), **reports, **answers}, drop=gone)

    def reference(self) -> "Reference | None":
        """The base's answers to public inputs, as last saved; None before that, and in vaults of earlier versions."""
        from tramark.suspects.reference import Reference
        from tramark.vault.packing import unpack

        return Reference.from_dict(unpack(self.get(REFERENCE))["reference"]) if REFERENCE in self.names else None

    def saved(self) -> dict[str, Any] | None:
        """The server's state as last saved; None before that."""
        from tramark.vault.packing import unpack

        name = checkpoints.newest(self.names)
        return None if name is None else unpack(self.storage.get(name))

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """The rounds after which a server's state is kept, oldest first: `rewind` goes back to one of them."""
        return tuple(checkpoints.rounds_of(self.names))

    def rewind(self, round: int) -> None:
        """Go back to the server's state after an earlier round. The log says so.

        Later states are deleted. Models stay issued, questions burned and error spent. A server that is running must
        `resume` from it.
        """
        checkpoints.rewind(self.storage, round)

    def reports(self) -> list[Report]:
        """The reports of all rounds, oldest first, as plain values."""
        return list(json.loads(self.storage.get(REPORTS))) if REPORTS in self.names else []

    def premise(self) -> Premise:
        """Whether marked models were issued, and in what share of the questions marks survive, for `trace`."""
        return premise_of(self.reports(), self.log(), self.sealed_keyring["classes"])

    def issue(
        self,
        round: int,
        models: "Mapping[str, State]",
        shared: Collection[str] = (),
        *,
        marked: bool | None = None,
        unmarked: Collection[str] = (),
    ) -> None:
        """Log which model goes to whom, and whether they have marks; call it before they are sent.

        `shared` are the names of tensors that are the same in all of these models: they are hashed once. `unmarked` are
        clients whose models have no mark even if the others do.
        """
        entries: list[Entry] = []
        known: dict[str, str] = {}
        for client, state in models.items():
            known = known or {name: tensor_digest(state[name]) for name in shared}
            own = marked if client not in unmarked else False
            entries.append(issued(round, client, commit.state_digest(state, known=known), marked=own))
        self.record(entries)

    def record(self, entries: Iterable[Entry], blobs: Mapping[str, bytes] | None = None) -> None:
        """Append entries to the log and put blobs, all or nothing; when this returns, they are on the disk.

        An entry is a dict of plain values with an `event`, such as `issued` makes. The vault adds number and time.
        """
        blobs = blobs or {}
        for name in blobs:
            _check_name(name)
        self.storage.commit(list(entries), blobs)

    def put(self, name: str, data: bytes) -> None:
        """Seal `data` under a name (a-z, 0-9, - and _), in place of what was there."""
        self.record([], {name: data})

    def get(self, name: str) -> bytes:
        """What was put under a name; `VaultError` if nothing was."""
        _check_name(name)
        return self.storage.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which something was put."""
        own = {KEYRING, SIGNING, COMMITMENTS, BOOK}
        return tuple(sorted(name for name in set(self.storage.head().sealed) - own if not is_case(name)))

    @property
    def cases(self) -> Cases:
        """All traces with this vault, what they spend of the error, and which questions are burned."""
        return Cases(self.storage)

    def log(self) -> Iterator[Entry]:
        """All entries, oldest first. A log that is not what was written raises `Damaged`."""
        return read_entries(self.path, self.storage.head())

    @property
    def head(self) -> tuple[int, str]:
        """The number of log entries and the last hash. Kept elsewhere, they show if a vault was set back in time."""
        head = self.storage.head()
        return head.entries, head.hash

    def set_back(self, known: tuple[int, str]) -> str | None:
        """What shows that the vault was set back since its head was `known`, in words; None if nothing does."""
        return set_back(self.path, self.storage.head(), known)

    @property
    def simulated(self) -> bool:
        """Whether a simulation made the vault: its secret comes from a seed, and nothing is proven by it."""
        return self.commitments[0].simulated

    @property
    def commitments(self) -> tuple[Commitment, ...]:
        """The signed commitments: of the creation, of choices of questions, of clients that joined, of new keys."""
        return tuple(commitment for commitment, _ in self.storage.chain())

    def prove_answers(self, client: str, questions: Iterable[int]) -> dict[str, Any]:
        """Open a client's answers to some questions of the pool, for `commitment.verify_answers`."""
        return commit.open_answers(self.keyring, client, questions, self.storage.chain())

    def prove_questions(self, wanted: Mapping[int, Iterable[int]]) -> list[dict[str, Any]]:
        """Open variants of questions for `commitment.verify_questions`: a proof per commitment."""
        return commit.open_questions(self.keyring, wanted, self.storage.chain())

    def sign(self, purpose: str, message: bytes) -> str:
        """Sign with the key that signed the last commitment; `commitment.verify_signature` checks it."""
        return signing.sign(self.storage, purpose, message)

    def signed(self, envelope: Envelope) -> Envelope:
        """An envelope with the vault's signature."""
        return envelope.signed(signing.signing_key(self.storage))

    def rotate(self, *, passphrase: str | None = None, key_file: str | Path | None = None) -> None:
        """Lock the vault with another passphrase or key file; nothing sealed is rewritten.

        Whoever knew the old one and kept an old copy of the vault's files can still read that copy.
        """
        if passphrase is None and key_file is None:
            raise NoKey("give the new passphrase or key file")
        source = find_key(self.path, passphrase=passphrase, key_file=key_file)
        to = "passphrase" if source.key_file is None else "key file"
        self.storage.lock_with(source, {"event": "rotated", "to": to})

    def rotate_signing_key(self) -> tuple[str, str]:
        """Replace the key that signs commitments and evidence; returns the old and the new public key (hex).

        The old key signs the new one, in a further commitment, and is then forgotten. Publish `commitment.json` again.
        """
        return signing.rotate(self.storage)

    def audit(self) -> list[str]:
        """All that is wrong with the vault's files, in words; empty if they are what was written."""
        return problems(self.storage)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name) or name in (KEYRING, SIGNING, COMMITMENTS, BOOK) or is_case(name):
        raise VaultError(f"nothing can be put under {name!r}: use a-z, 0-9, - and _, and no name of the vault's own")
