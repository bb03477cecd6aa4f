"""Keys: which questions each client's model must answer, and how.

There are two ways to assign answers. **code**: all clients share the same m questions, and client i's
answers are a secret codeword, uniform on {0 … r-1}^m and independent of every other client's, so that an
innocent client's number of matches with any suspect is Binomial(m, 1/r). **label** (the paper's): client
i has one question of its own in many variants, and answers all of them with label i.

With code answers the federation has a key of its own, too: common questions, which all clients' models answer alike.

A keyring is a value: joining, leaving and choosing questions return a new one. It stores the secret and a few
numbers; questions and codewords are derived from them whenever they are asked for.
"""

import hashlib
import json
import secrets
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from tramark.errors import SettingError, UnknownClientError
from tramark.evidence.federation import FEDERATION
from tramark.keys import streams
from tramark.keys.pictures import Patterns
from tramark.keys.sizes import common_in, questions_needed
from tramark.keys.sources import Normalise, Source, Tokens, for_shape, from_description

Assignment = Literal["code", "label"]
Part = Literal["train", "held-out"]


KEPT = 2**27
"""Rendered questions are kept up to about this many bytes."""


@dataclass(frozen=True)
class Key:
    """One client's questions (numbers in the keyring's pool) and the answers its model must give."""

    client: str
    questions: tuple[int, ...]
    answers: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Keyring:
    """The keys of all clients of one federation.

    >>> pictures = {"input_shape": (1, 28, 28), "normalise": (0.5, 0.5)}
    >>> ring = Keyring.generate(clients=["alice", "bob"], classes=10, **pictures)
    >>> ring
    Keyring(2 clients, 10 classes, code answers, 32 questions, Patterns((1, 28, 28), mean 0.5, std 0.5))
    >>> ring.inputs(ring.key("alice"), "train").shape    # questions × variants × input
    torch.Size([32, 2, 1, 28, 28])
    >>> ring.join("carol").key("alice") == ring.key("alice")    # nobody else's key changes
    True

    Parameters
    ----------
    clients : all who ever were in the federation, in the order of joining; those in `departed` have left.
    classes : number of labels r that the model can answer.
    questions : how many questions m are asked of each model (code), or 1 (label).
    pool : number of candidate questions of which `chosen` are used. Fixed beforehand, so that the choice can
        depend on the model, but never on the answers.
    train_variants, held_out_variants : noisy variants of each question to train on and to trace with.
    common : questions of the federation's own key, which all clients' models answer alike; different from `chosen`.
    beacons : from which client on (its number in `clients`) answers are shifted by which key (hex) of a public beacon;
        an empty key is that of a value that is not out yet.
    """

    secret: bytes
    clients: tuple[str, ...]
    classes: int
    source: Source
    assignment: Assignment = "code"
    questions: int = 16
    pool: int = 640
    train_variants: int = 2
    held_out_variants: int = 4
    chosen: tuple[int, ...] = ()
    departed: frozenset[str] = frozenset()
    beacons: tuple[tuple[int, str], ...] = ()
    common: tuple[int, ...] = ()
    _rendered: dict[tuple[Part, tuple[int, ...]], Tensor] = field(default_factory=dict, init=False, compare=False)

    def __repr__(self) -> str:
        asked = f"{self.questions} questions" if self.assignment == "code" else "one question each"
        return (
            f"Keyring({len(self.clients)} clients, {self.classes} classes, {self.assignment} answers, {asked}, "
            f"{self.source!r})"
        )

    def __post_init__(self) -> None:
        if len(self.secret) < 16:
            raise SettingError(f"a secret of {len(self.secret)} bytes can be guessed: use secrets.token_bytes(32)")
        if not self.clients:
            raise SettingError("a keyring needs at least one client")
        if twice := [client for client, count in Counter(self.clients).items() if count > 1]:
            raise SettingError(f"two clients with one name: {', '.join(map(repr, twice))}")
        if FEDERATION in self.clients:
            raise SettingError(f"no client can be named {FEDERATION!r}: that is the federation's own key")
        if self.classes < 2:
            raise SettingError(f"{self.classes} classes: a model with fewer than two labels cannot answer differently")
        if self.assignment == "label" and len(self.clients) > self.classes:
            raise SettingError(
                f"{len(self.clients)} clients need as many labels, but the model has {self.classes}: use code answers, "
                f"or enlarge the model's head with extend_head(model, {len(self.clients)}) before training"
            )
        if self.assignment == "code" and self.pool < self.questions + len(self.common):
            wanted = self.questions + len(self.common)
            raise SettingError(f"{wanted} questions cannot be chosen from a pool of {self.pool}")
        if min(self.questions, self.train_variants, self.held_out_variants) < 1:
            raise SettingError("there must be at least one question, one variant to train on and one held out")

    @classmethod
    def generate(
        cls,
        *,
        clients: Sequence[str],
        classes: int,
        input_shape: tuple[int, ...] | None = None,
        normalise: Normalise | None = None,
        source: Source | None = None,
        assignment: Assignment = "code",
        questions: int | None = None,
        pool: int | None = None,
        common: int | None = None,
        train_variants: int | None = None,
        held_out_variants: int | None = None,
        secret: bytes | None = None,
    ) -> Self:
        """Draw a new keyring for `clients` of a model with `classes` labels.

        Without `source`, questions are made for `input_shape`, and `normalise` is the (mean, std), as one number each
        or one a channel, with which clients normalise pictures of values between 0 and 1. Without `questions`, there
        are as many as `questions_needed` says. `common` is how many the federation's own key has: without it, enough
        for three convictions, as far as the pool has them. Both are the most; a server uses as many as its model
        bears. Without `secret`, a fresh one comes from the operating system.
        """
        if source is None:
            if input_shape is None:
                raise SettingError("say what the model is fed: input_shape=(1, 28, 28), or source=…")
            source = for_shape(input_shape, normalise=normalise)
            if len(input_shape) == 3 and normalise is None:
                warnings.warn(
                    "how clients normalise pictures was not stated: mean 0.5 and standard deviation 0.5 are assumed. "
                    "Models that are fed otherwise lose their marks: say normalise=(mean, std)",
                    stacklevel=2,
                )
        elif normalise is not None:
            raise SettingError("normalise is for questions made for input_shape: a source has its own mean and std")
        code = assignment == "code"
        count = questions or (questions_needed(len(clients), classes) if code else 1)
        # Of many tokens few are rare in the clients' texts, and candidates cost little.
        candidates = 2000 if isinstance(source, Tokens) else 640
        pool = pool or (max(candidates, 10 * count) if code else classes)
        if common is None:
            common = common_in(pool - count, len(clients), classes) if code else 0
        elif common and not code:
            raise SettingError("label answers have no common questions: each client has a question of its own")
        return cls(
            secret=secret or secrets.token_bytes(32),
            clients=tuple(clients),
            classes=classes,
            source=source,
            assignment=assignment,
            questions=count if code else 1,
            pool=pool,
            train_variants=train_variants or (2 if code else 100),
            held_out_variants=held_out_variants or (4 if code else 100),
            chosen=tuple(range(count)) if code else (),
            common=tuple(range(count, count + common)),
        )

    @property
    def active(self) -> tuple[str, ...]:
        """The clients that have not left."""
        return tuple(c for c in self.clients if c not in self.departed)

    def join(self, client: str) -> Self:
        """The keyring with a new client, or with one that comes back and gets its own key again."""
        if client in self.active:
            raise SettingError(f"client {client!r} is in the keyring already")
        if client in self.departed:
            return replace(self, departed=self.departed - {client})
        return replace(self, clients=(*self.clients, client))

    def leave(self, client: str) -> Self:
        """The keyring without a client. Its key is kept: what it leaked before can still be traced."""
        self._check(client)
        return replace(self, departed=self.departed | {client})

    def choose(
        self, questions: Iterable[int], pictures: Tensor | None = None, *, common: Iterable[int] | None = None
    ) -> Self:
        """The keyring with other questions of the pool in use (code answers only).

        `common` are those of the federation's own key: without it, those that it had and that are not chosen now.
        `pictures` (questions, then common ones × C × H × W bytes) are shown instead of what the secret says; questions
        without are as drawn.
        """
        chosen = tuple(int(q) for q in questions)
        kept = [q for q in self.common if q not in chosen] if common is None else [int(q) for q in common]
        used = (*chosen, *kept)
        if self.assignment != "code":
            raise SettingError("label answers have one question per client: there is nothing to choose")
        if not chosen or len(set(used)) < len(used) or not set(used) <= set(range(self.pool)):
            raise SettingError(f"choose different questions of the {self.pool} in the pool, one at least")
        other = replace(self, questions=len(chosen), chosen=chosen, common=tuple(kept))
        if pictures is not None and len(pictures) != len(used):
            raise SettingError(f"{len(pictures)} pictures for {len(used)} questions, {len(kept)} of them common")
        if isinstance(self.source, Patterns):
            own = {} if pictures is None else dict(zip(used, pictures, strict=True))
            return replace(other, source=self.source.retouch(own))
        if pictures is not None:
            raise SettingError(f"questions made by {type(self.source).__name__} cannot be retouched: only Patterns can")
        return other

    @property
    def in_use(self) -> tuple[int, ...]:
        """All questions that models are taught: the clients', then the common ones."""
        return (*self.chosen, *self.common)

    @property
    def pictures(self) -> Tensor | None:
        """The questions in use without noise (questions × C × H × W bytes); None if they are not patterns."""
        if self.assignment == "label" or not isinstance(self.source, Patterns):
            return None
        return torch.stack([self.source.picture(self.secret, question) for question in self.in_use])

    def key(self, client: str) -> Key:
        """A client's questions and answers."""
        self._check(client)
        if self.assignment == "label":
            slot = self.clients.index(client)
            return Key(client, (slot,), (slot,))
        number = self.clients.index(client)
        return Key(client, self.chosen, tuple(self.codebook(clients=slice(number, number + 1))[0].tolist()))

    @property
    def common_key(self) -> Key:
        """The federation's own key; it is empty if there are no common questions."""
        return Key(FEDERATION, self.common, self.common_answers(self.common))

    def common_answers(self, questions: Sequence[int]) -> tuple[int, ...]:
        """The federation's own answers to questions of the pool."""
        symbols = self._drawn(self.secret, [FEDERATION], questions)
        if self.beacons:
            # The beacon that counts is the one with which the questions were settled.
            symbols += self._drawn(_revealed(self.beacons[0][1]), [FEDERATION], questions)
        return tuple((symbols % self.classes)[0].tolist())

    def taught(self, client: str) -> Key:
        """All that a client's model is taught: the client's own answers, then the common ones."""
        own, common = self.key(client), self.common_key
        return Key(client, own.questions + common.questions, own.answers + common.answers)

    def codebook(self, questions: Sequence[int] | None = None, *, clients: slice = slice(None)) -> Tensor:
        """Everyone's answers to `questions` of the pool (those in use, unless told): clients × questions.

        With millions of clients, take a slice of them at a time.
        """
        if self.assignment == "label":
            raise SettingError("label answers have no codebook: each client has a question of its own")
        asked, rows = self.chosen if questions is None else questions, range(len(self.clients))[clients]
        symbols = self._drawn(self.secret, self.clients[clients], asked)
        # Each beacon's key counts from its first client on, until the next one's.
        for (first, key), (end, _) in zip(self.beacons, (*self.beacons[1:], (len(self.clients), "")), strict=False):
            shifted = [place for place, row in enumerate(rows) if first <= row < end]
            if shifted:
                symbols[shifted] += self._drawn(_revealed(key), [self.clients[rows[place]] for place in shifted], asked)
        return symbols % self.classes

    def _drawn(self, secret: bytes, names: Sequence[str], questions: Sequence[int]) -> Tensor:
        """Symbols for names and any questions of the pool: names × questions."""
        return streams.codewords(secret, names, questions, length=self.pool, symbols=self.classes)

    def variants(self, part: Part) -> range:
        """The numbers of the variants that marks are made with ("train"), or that suspects are asked ("held-out")."""
        last = self.train_variants + self.held_out_variants
        return range(self.train_variants) if part == "train" else range(self.train_variants, last)

    def asked(self, question: int, variant: int) -> Tensor:
        """The raw input that a suspect is asked: the held-out variant number `variant` (from 0) of a question.

        >>> ring = Keyring.generate(clients=["alice"], classes=10, input_shape=(1, 8, 8), normalise=(0.5, 0.5))
        >>> torch.equal(ring.asked(5, 1), ring.raw([5], "held-out")[0, 1])
        True
        """
        number = self.variants("held-out")[variant]
        return self.source.render(self.secret, question, range(number, number + 1))[0]

    def raw(self, questions: Sequence[int], part: Part) -> Tensor:
        """Questions as they travel (bytes of images, numbers, tokens): questions × variants × input."""
        asked = part, tuple(questions)
        # A round asks for what the last one asked for.
        if asked not in self._rendered:
            rendered = torch.stack([self.source.render(self.secret, q, self.variants(part)) for q in questions])
            if rendered.nbytes + sum(kept.nbytes for kept in self._rendered.values()) > KEPT:
                self._rendered.clear()
            self._rendered[asked] = rendered
        return self._rendered[asked]

    def inputs(self, key: Key, part: Part) -> Tensor:
        """A key's questions as the model is fed them: questions × variants × input."""
        raw = self.raw(key.questions, part)
        prepared = self.source.prepare(raw.flatten(0, 1))
        return prepared.view(*raw.shape[:2], *prepared.shape[1:])

    @property
    def fingerprint(self) -> str:
        """A hash of all but the clients: two keyrings with the same one ask and expect the same of every client."""
        kept = {name: value for name, value in self.to_dict().items() if name not in ("clients", "departed")}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Everything, secret included, as plain values. For a vault, never for a log."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.init and one.name != "source"}
        for later in ("beacons", "common"):
            # Keyrings of early versions have none: their fingerprints must not change.
            if not plain[later]:
                del plain[later]
        return plain | {
            "secret": self.secret.hex(),
            "triggers": self.source.describe(),
            "departed": sorted(self.departed),
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any], *, images: tuple[Tensor, Tensor] | None = None) -> Self:
        """The keyring that `to_dict` wrote; questions from an image set need the `images` and labels again."""
        own = {name: value for name, value in plain.items() if name != "triggers"}
        return cls(
            **own
            | {
                "secret": bytes.fromhex(plain["secret"]),
                "clients": tuple(plain["clients"]),
                "chosen": tuple(plain["chosen"]),
                "departed": frozenset(plain["departed"]),
                "beacons": tuple((first, key) for first, key in plain.get("beacons", ())),
                "common": tuple(plain.get("common", ())),
                "source": from_description(plain["triggers"], images=images),
            }
        )

    def _check(self, client: str) -> None:
        if client not in self.clients:
            raise UnknownClientError(f"no client {client!r} in the keyring")


def _revealed(key: str) -> bytes:
    """The key (hex) of a beacon's shifts, if its value is out."""
    if not key:
        raise SettingError("answers wait for the value of a public beacon: reveal it in the vault first")
    return bytes.fromhex(key)
