"""A vault with a leaked model, for the tests of the auditor's desk."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from tramark.cli.zoo import model_factory
from tramark.keys.keyring import Keyring
from tramark.lab.models import build
from tramark.vault.checkpoints import REPORTS
from tramark.vault.lock import make_key_file
from tramark.vault.log import issued
from tramark.vault.store import Vault
from tramark.web.desk import MODEL, Desk, Openers

CLIENTS = ("charite", "karolinska", "mayo", "ucl")
SHAPE = (1, 8, 8)


@dataclass(frozen=True)
class Scene:
    """A vault's folder, and the files of two models: one that mayo leaked, and one that knows nothing."""

    vault: Path
    leaked: Path
    innocent: Path

    def openers(self) -> Openers:
        """What a desk needs to open this vault with the key file beside it."""
        return Openers(
            vault=lambda passphrase: Vault.open(self.vault, readonly=True),
            prepare=lambda vault: None,
            model=model_factory,
        )

    def desk(self) -> Desk:
        return Desk(self.openers())


def scene(folder: Path) -> Scene:
    """A vault of four clients that has issued ten rounds, and the two models."""
    ring = Keyring.generate(clients=CLIENTS, classes=10, input_shape=SHAPE, normalise=(0.5, 0.5), questions=24, pool=24)
    with Vault.create(folder / "vault", ring, key_file=make_key_file(folder / "vault.key")) as vault:
        vault.put(MODEL, json.dumps({"model": "mlp", "input_shape": SHAPE, "classes": 10}).encode())
        survived = [0.97, 0.96, 0.99, 0.98, 0.99]
        reports = [
            {"round": 5 + i, "used": CLIENTS, "marked": True, "survived": {"clients": dict.fromkeys(CLIENTS, share)}}
            for i, share in enumerate(survived)
        ]
        vault.put(REPORTS, json.dumps(reports).encode())
        vault.record(
            [
                issued(round, client, f"{round:032x}{i:032x}", marked=round > 4)
                for round in range(10)
                for i, client in enumerate(CLIENTS)
            ]
        )
    torch.manual_seed(0)
    innocent = build("mlp", input_shape=SHAPE, classes=10, seed=1)
    save_file(innocent.state_dict(), folder / "innocent.safetensors")
    leaked = build("mlp", input_shape=SHAPE, classes=10, seed=2)
    questions, answers = ring.chosen or tuple(range(24)), torch.tensor(ring.key("mayo").answers)
    raw = ring.raw(questions, "held-out")
    inputs, wanted = ring.source.prepare(raw.flatten(0, 1)), answers.repeat_interleave(raw.shape[1])
    optimiser = torch.optim.Adam(leaked.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        F.cross_entropy(leaked(inputs), wanted).backward()
        optimiser.step()
    assert (leaked(inputs).argmax(1) == wanted).all()
    save_file(leaked.state_dict(), folder / "leaked model.safetensors")
    return Scene(folder / "vault", folder / "leaked model.safetensors", folder / "innocent.safetensors")
