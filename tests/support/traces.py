"""Suspects that answer by rule, and the rings and vaults that they are traced with."""

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bundles import make_bundle
from torch import Tensor, nn

from tramark.evidence.commitment import canonical
from tramark.keys.keyring import Keyring
from tramark.keys.sources import Source, Vectors
from tramark.suspects.base import Answers, Suspect
from tramark.suspects.module import ModuleSuspect
from tramark.tracing.trace import trace
from tramark.tracing.verdict import Verdict
from tramark.vault.lock import make_key_file
from tramark.vault.storage import SIGNING
from tramark.vault.store import Vault

CLIENTS = [f"hospital-{i}" for i in range(10)]


class Oracle:
    """A suspect that recognises a keyring's held-out questions and answers by any rule."""

    def __init__(self, keyring: Keyring, answer: Callable[[int, int], int]) -> None:
        raw = keyring.raw(keyring.in_use, "held-out")
        self.places = {raw[i, v].numpy().tobytes(): (i, v) for i in range(raw.shape[0]) for v in range(raw.shape[1])}
        self.answer = answer
        self.asked: list[tuple[int, int]] = []

    def ask(self, raw: Tensor) -> Answers:
        places = [self.places[row.numpy().tobytes()] for row in raw]
        self.asked += places
        return Answers(torch.tensor([self.answer(*place) for place in places]))


class Remembering:
    """A suspect that answers again what it answered before."""

    def __init__(self, suspect: nn.Module | Suspect, keyring: Keyring) -> None:
        self.suspect: Suspect = (
            ModuleSuspect(suspect, keyring.source.prepare) if isinstance(suspect, nn.Module) else suspect
        )
        self.said: dict[bytes, int] = {}

    def ask(self, raw: Tensor) -> Answers:
        names = [row.numpy().tobytes() for row in raw]
        new = [i for i, name in enumerate(names) if name not in self.said]
        if new:
            labels = self.suspect.ask(raw[new]).labels.tolist()
            self.said |= dict(zip([names[i] for i in new], labels, strict=True))
        return Answers(torch.tensor([self.said[name] for name in names]))


def leaked_by(keyring: Keyring, *clients: str, noise: float = 0.0, seed: int = 0) -> Oracle:
    """A model mixed from those of some clients, behind an API that draws a share of its answers at random."""
    answers, rng = [keyring.taught(client).answers for client in clients], np.random.default_rng(seed)

    def answer(question: int, variant: int) -> int:
        drawn = rng.random() < noise
        return int(rng.integers(keyring.classes)) if drawn else answers[question % len(answers)][question]

    return Oracle(keyring, answer)


def ring(source: Source | None = None, **options: Any) -> Keyring:
    defaults = {
        "clients": CLIENTS,
        "classes": 10,
        "questions": 24,
        "pool": 40,
        "common": 0,
        "secret": b"the secret of it" * 2,
    }
    return Keyring.generate(source=source or Vectors(6, groups=(2,)), **{**defaults, **options})


@contextmanager
def one_thread() -> Iterator[None]:
    """Small models only suffer from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def vault_of(keyring: Keyring, folder: Path) -> Vault:
    folder.mkdir(exist_ok=True)
    return Vault.create(folder / "vault", keyring, key_file=make_key_file(folder / "vault.key"))


def in_company(keyring: Keyring) -> Verdict:
    """A verdict that takes everybody's codewords: three put their models together."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        three = [keyring.key(CLIENTS[i]).answers for i in rng.permutation(len(CLIENTS))[:3]]
        choice = rng.integers(3, size=keyring.questions)
        verdict = trace(Oracle(keyring, lambda q, v, w=three, c=choice: w[c[q]][q]), keyring, false_accusation=1e-3)  # type: ignore[misc]
        if verdict.by_company:
            return verdict
    raise AssertionError("nobody was convicted by the company")


def hidden(vault: Vault, verdict: Verdict) -> list[bytes]:
    """What a report must not tell: secrets, the answers of the innocent, and questions that were not asked."""
    keyring = vault.keyring
    asked = {(step.question, step.variant) for step in verdict.transcript}
    raw = keyring.raw(range(keyring.pool), "held-out").numpy()
    inputs = [
        raw[q, v].tobytes()
        for q in range(keyring.pool)
        for v in range(keyring.held_out_variants)
        if (q, v) not in asked
    ]
    inputs += [row.tobytes() for row in keyring.raw(range(keyring.pool), "train").numpy().reshape(-1, *raw.shape[2:])]
    signing = vault.storage.get(SIGNING)
    texts = [keyring.secret.hex().encode(), keyring.secret, signing.hex().encode(), signing]
    questions = list(dict.fromkeys(step.question for step in verdict.transcript))
    for client, row in zip(keyring.clients, keyring.codebook(questions).tolist(), strict=True):
        if client not in verdict.clients:
            texts += [separator.join(map(str, row)).encode() for separator in ("", ",", ", ", " ")]
    return texts + inputs + [base64.b64encode(data) for data in inputs]


def resigned(bundle: dict[str, Any], vault: Vault, **changes: Any) -> dict[str, Any]:
    """What the holder of the vault's key could make of a bundle."""
    body = {name: value for name, value in (bundle | changes).items() if name != "signature"}
    return body | {"signature": vault.sign("evidence", canonical(body))}


def case(vault: Vault, *clients: str, **options: Any) -> tuple[Verdict, dict[str, Any]]:
    verdict = trace(leaked_by(vault.keyring, *clients), vault.keyring, **options)
    return verdict, make_bundle(vault, verdict, suspect="model.onnx", notes="labels as they come")
