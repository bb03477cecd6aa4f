"""Commitments to a keyring, made before anybody leaks, and openings that show only what a case needs.

Every client's answers to the chosen questions, and every held-out variant of every question, are hidden in salted
leaves. Leaves form a tree per client and a tree per question. The roots of these trees are the leaves of one top tree,
whose root is signed. An opening shows some leaves with their salts and the hashes on their way up. It tells nothing
about the other leaves, since each has a secret salt of its own. Clients that join later get a further commitment that
names the one before, and so do questions that are retouched after they were chosen, and a new signing key, which the
old one signs too. If other questions are chosen, a further commitment has everybody's answers to those. Early vaults
commit to the answers to all questions of the pool instead. Trees are those of RFC 6962, and the number of leaves is
part of what is signed. Checking needs no secret and no tensor library; `docs/reference/vault.md` describes all of it
byte by byte.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tramark.errors import BadProof
from tramark.evidence.beacon import Beacon, from_plain
from tramark.evidence.federation import FEDERATION
from tramark.evidence.leaves import answer_leaf, client_leaf, question_leaf, unhex, variant_leaf
from tramark.evidence.merkle import climb


def canonical(value: Any) -> bytes:
    """The one JSON text of a value that is hashed and signed: sorted keys, no spaces, ASCII.

    >>> canonical({"b": 1, "a": "é"})
    b'{"a":"\\\\u00e9","b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(*parts: bytes) -> bytes:
    """The SHA-256 hash of the parts, one after the other."""
    return hashlib.sha256(b"".join(parts)).digest()


def array_digest(dtype: str, shape: Sequence[int], data: bytes | memoryview) -> str:
    """SHA-256 of an array, given as its type, shape and little-endian bytes in row-major order."""
    digest = hashlib.sha256(f"{dtype} {'x'.join(str(int(length)) for length in shape)}\n".encode())
    digest.update(data)
    return digest.hexdigest()


def sign(key: Ed25519PrivateKey, purpose: str, message: bytes) -> str:
    """A signature (hex) for one purpose; it does not verify for any other."""
    return key.sign(_signed(purpose, message)).hex()


def verify_signature(public_key: str, purpose: str, message: bytes, signature: str) -> None:
    """Raise `BadProof` unless `public_key` (hex) signed `message` for `purpose`."""
    try:
        key = Ed25519PublicKey.from_public_bytes(unhex(public_key))
        key.verify(unhex(signature, 64), _signed(purpose, message))
    except (InvalidSignature, ValueError, TypeError):
        raise BadProof(f"the signature of the {purpose} is not by this key") from None


def _signed(purpose: str, message: bytes) -> bytes:
    return b"tramark " + purpose.encode() + b"\0" + message


_LATER = ("simulated", "endorsement", "beacon", "common", "answers")

CHOSEN = "chosen"
"""The value of `Commitment.answers` in vaults that commit to the answers to the chosen questions alone."""


@dataclass(frozen=True)
class Commitment:
    """A signed root: the keys of some clients, and the questions, as they were at a time.

    The leaves of the top tree are `clients`, then `questions`. Both are (first, count): which clients in the order of
    joining, and which questions of the pool. Without leaves, the root is empty. `chosen` are the questions of the
    pool that are asked from then on, in their order, and `common` those of the federation's own key. If the first
    commitment has common ones, its last leaf is the federation's own answers. With code answers, a later commitment
    has either no questions, or all those in use, in that order, as they were retouched. `simulated` says that the
    secret comes from a seed, so that the commitment proves nothing. If `public_key` is not that of the commitment
    before, `endorsement` is that one's signature. `beacon` is a public beacon's later round, whose value is added to
    the answers. `answers` is "chosen" if a client's tree has its answers to the `chosen` questions, in that order;
    then a commitment that chooses others has all clients again. It is empty if a client's tree has the whole pool.
    """

    vault: str
    number: int
    previous: str
    time: str
    assignment: str
    classes: int
    clients: tuple[int, int]
    questions: tuple[int, int]
    chosen: tuple[int, ...]
    root: str
    public_key: str
    signature: str = ""
    simulated: bool = False
    endorsement: str = ""
    beacon: Beacon | None = None
    common: tuple[int, ...] = ()
    answers: str = ""

    @property
    def body(self) -> bytes:
        """What is signed: everything but the signatures."""
        unsigned = {"signature", "endorsement"}
        return canonical({name: value for name, value in self.to_dict().items() if name not in unsigned})

    @property
    def digest(self) -> str:
        """The hash by which the next commitment, and the log, name this one."""
        return sha256(canonical(self.to_dict())).hex()

    @property
    def size(self) -> int:
        """The number of leaves of the top tree."""
        return self.clients[1] + self.questions[1] + self.has_federation

    @property
    def has_federation(self) -> bool:
        """Whether the last leaf of the top tree is the federation's own answers."""
        return self.number == 1 and bool(self.common)

    @property
    def in_use(self) -> tuple[int, ...]:
        """The questions that are asked: the clients', then the common ones."""
        return (*self.chosen, *self.common)

    @property
    def asked(self) -> Sequence[int]:
        """The questions that are leaves of the top tree, in their order."""
        first, count = self.questions
        return self.in_use[:count] if self.number > 1 and self.assignment == "code" else range(first, first + count)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for publication."""
        plain = asdict(self)
        # Fields that early versions did not have are left out where they say nothing: signatures are over all others.
        return json.loads(canonical({name: plain[name] for name in plain if name not in _LATER or plain[name]}))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote; anything else raises `BadProof`."""
        with _reading("commitment"):
            values = {name: natural(plain[name]) for name in ("number", "classes")}
            spans = {name: (natural(plain[name][0]), natural(plain[name][1])) for name in ("clients", "questions")}
            chosen, common = (tuple(map(natural, plain.get(name, ()))) for name in ("chosen", "common"))
            beacon = from_plain(plain.get("beacon"))
            found = cls(**{**plain, **values, **spans, "chosen": chosen, "common": common, "beacon": beacon})
            if found.to_dict() != plain or type(found.simulated) is not bool or found.answers not in ("", CHOSEN):
                raise ValueError
            return found


def verify_chain(commitments: Sequence[Commitment]) -> None:
    """Raise `BadProof` unless each commitment follows from the one before and is signed by its key, or a new one.

    A commitment with a new key must be signed by both.
    """
    if not commitments:
        raise BadProof("there is no commitment")
    first = commitments[0]
    digest, clients, key, chosen = "", 0, first.public_key, first.chosen
    for number, this in enumerate(commitments, 1):
        verify_signature(this.public_key, "commitment", this.body, this.signature)
        if this.public_key != key:
            verify_signature(key, "new key", this.body, this.endorsement)
        elif this.endorsement:
            raise BadProof(f"commitment {number} hands over to the key that it had")
        same = ("vault", "assignment", "classes", "simulated", "answers")
        # Answers to other questions than before are committed to for everybody.
        known = 0 if first.answers and this.chosen != chosen else clients
        follows = (this.number, this.previous, this.clients[0]) == (number, digest, known)
        if (
            not follows
            or sum(this.clients) < clients
            or any(getattr(this, name) != getattr(first, name) for name in same)
        ):
            raise BadProof(f"commitment {number} does not follow from the one before")
        pool = range(first.questions[1])
        if len(set(this.in_use)) < len(this.in_use) or any(question not in pool for question in this.in_use):
            raise BadProof(f"commitment {number} chooses questions that are not different ones of the pool")
        if this.common and not first.common:
            raise BadProof(f"commitment {number} has common questions, but the first has no answers of the federation")
        retouched = (0, 0), (0, len(this.in_use))
        if number > 1 and first.assignment == "code" and this.questions not in retouched:
            raise BadProof(f"commitment {number} adds questions to a pool that was settled by the first")
        digest, clients, key, chosen = this.digest, sum(this.clients), this.public_key, this.chosen


def signers(commitments: Sequence[Commitment]) -> list[str]:
    """The keys (hex) that signed a chain, oldest first. The last one signs evidence."""
    return list(dict.fromkeys(commitment.public_key for commitment in commitments))


def verify_answers(proof: Mapping[str, Any], commitments: Sequence[Commitment]) -> dict[int, int]:
    """The answers (by question) that an opening shows of `proof["client"]`; `BadProof` if it does not hold.

    The chain of commitments is not checked here: check it once with `verify_chain`.
    """
    with _reading("opening of answers"):
        commitment, client = _committed(proof, commitments), proof["client"]
        first, count = natural(proof["first"]), natural(proof["count"])
        places: Sequence[int] = range(first, first + count)
        if commitment.answers and client != FEDERATION:
            # Also if the same questions were chosen again: of two commitments to a client's answers, one must count.
            if any(later.clients[1] and not later.clients[0] for later in commitments[commitment.number :]):
                raise BadProof(f"commitment {commitment.number} has answers to questions that were replaced since")
            places = commitment.chosen
            if (first, count) != (0, len(places)):
                raise BadProof("an opening of answers is not of those to the chosen questions")
        shown, roots, name = {}, set(), sha256(client.encode())
        for item in proof["answers"]:
            question, answer = natural(item["question"]), natural(item["answer"])
            leaf = answer_leaf(unhex(item["salt"]), name, question, answer)
            roots.add(climb(leaf, places.index(question), count, _bytes(item["path"])))
            shown[question] = answer
        if len(shown) != len(proof["answers"]) or len(roots) != 1:
            raise BadProof("an opening of answers is not of one client's answers, each shown once")
        index = natural(proof["index"])
        clients, federation = range(commitment.clients[1]), range(commitment.size - 1, commitment.size)
        if index not in (federation if client == FEDERATION and commitment.has_federation else clients):
            raise BadProof("an opening of answers does not lead to a client")
        leaf = client_leaf(name, first, count, roots.pop())
        _check_root(leaf, index, proof["path"], commitment)
        return shown


def verify_questions(proof: Mapping[str, Any], commitments: Sequence[Commitment]) -> dict[tuple[int, int], str]:
    """The `array_digest` of each (question, variant) that an opening shows; `BadProof` if it does not hold."""
    with _reading("opening of questions"):
        commitment = _committed(proof, commitments)
        shown: dict[tuple[int, int], str] = {}
        for part in proof["questions"]:
            question, first, count = (natural(part[name]) for name in ("question", "first", "count"))
            if question not in commitment.asked:
                raise BadProof(f"question {question} is not in commitment {commitment.number}")
            index = commitment.clients[1] + commitment.asked.index(question)
            roots = set()
            for item in part["variants"]:
                variant, digest = natural(item["variant"]), item["sha256"]
                leaf = variant_leaf(unhex(item["salt"]), question, variant, digest)
                roots.add(climb(leaf, variant - first, count, _bytes(item["path"])))
                if (question, variant) in shown:
                    raise BadProof(f"variant {variant} of question {question} is shown twice")
                shown[question, variant] = digest
            if len(roots) != 1:
                raise BadProof(f"the variants shown of question {question} are not of one question")
            leaf = question_leaf(question, first, count, roots.pop())
            _check_root(leaf, index, part["path"], commitment)
        return shown


def _committed(proof: Mapping[str, Any], commitments: Sequence[Commitment]) -> Commitment:
    number = natural(proof["commitment"])
    if not 1 <= number <= len(commitments):
        raise BadProof(f"there is no commitment {number}")
    return commitments[number - 1]


def _check_root(leaf: bytes, index: int, path: Sequence[str], commitment: Commitment) -> None:
    if climb(leaf, index, commitment.size, _bytes(path)).hex() != commitment.root:
        raise BadProof(f"an opening does not lead to the root of commitment {commitment.number}")


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turns every error about a malformed file into `BadProof`."""
    try:
        yield
    except (TypeError, KeyError, IndexError, ValueError, AttributeError, OverflowError):
        raise BadProof(f"this is not a well-formed {what}") from None


def natural(value: Any) -> int:
    """The value, if it is a whole number of 32 bits; a stranger's file may have anything in its place."""
    if type(value) is not int or not 0 <= value < 2**32:
        raise ValueError
    return value


def _bytes(path: Sequence[str]) -> list[bytes]:
    return [unhex(step) for step in path]
