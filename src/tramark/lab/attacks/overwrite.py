"""Overwriting: the thief marks the model again, with keys of its own.

The thief knows the method, and has the stolen model and its own samples. So it runs a small federation of dummies
around the model: each trains a share of the samples, which reveals the drift that the closed form needs (or moves the
base towards the marks of the paper's way), and the server writes marks for a fresh keyring over what is there. What
turns up is the model of one dummy.
"""

import hashlib
from dataclasses import dataclass

from torch import nn

from tramark.errors import SettingError
from tramark.keys.keyring import Keyring
from tramark.keys.pictures import Patterns
from tramark.keys.sources import Source, Tokens, Vectors
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import BATCH, check_training
from tramark.lab.data import Dataset
from tramark.lab.simulation import partition
from tramark.lab.simulation.client import LocalTraining, predict
from tramark.marks.presets import PRESETS, preset_named
from tramark.server import TraMark


@dataclass(frozen=True)
class Overwrite:
    """TraMark once more.

    Parameters
    ----------
    dummies : clients of the thief's federation, among whom its samples are divided.
    rounds : of training and marking.
    epochs, lr : of each dummy's training in a round.
    questions : how many the new mark answers; by default, as many as a federation of this size would use.
    pool : how many candidates they are chosen from; by default, as many as a federation would use.
    preset : which way to make marks: `default` (in closed form), `paper` or `released`.
    ratio : the region's share of the weights, for the last two.
    """

    dummies: int = 4
    rounds: int = 2
    epochs: int = 2
    lr: float = 1e-3
    questions: int | None = None
    pool: int | None = None
    preset: str = "default"
    ratio: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        if self.dummies < 1 or self.rounds < 1:
            raise SettingError(f"{self.dummies} dummies and {self.rounds} rounds: there must be at least one of each")
        if self.preset not in PRESETS:
            raise SettingError(f"unknown preset {self.preset!r}: use one of {', '.join(PRESETS)}")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        server = self.federation(model, loot)
        return server.client_model(server.fleet.clients[0])

    def federation(self, model: nn.Module, loot: Loot) -> TraMark:
        """The thief's server after its last round."""
        random = generator(self.seed)
        stolen = copied(model)
        dataset = loot.dataset
        names = [f"dummy-{i}" for i in range(min(self.dummies, len(loot.indices)))]
        keyring = Keyring.generate(
            clients=names,
            classes=predict(stolen, dataset.train_inputs[loot.indices[:1]], prepare=loot.prepare).shape[1],
            source=_triggers(dataset),
            questions=self.questions,
            pool=self.pool,
            common=0,
            secret=hashlib.sha256(f"thief {self.seed}".encode()).digest(),
        )
        own = {} if self.preset == "default" else {"ratio": self.ratio}
        injection = preset_named(self.preset, **own)
        # Marks that would wait for what clients return are made at once, so that even one round leaves some.
        server = TraMark(stolen, keyring, warmup_rounds=0 if injection.waits else 1, injection=injection)
        parts = [loot.indices[part] for part in partition.iid(loot.labels, len(names), generator=random)]
        training = LocalTraining(epochs=self.epochs, batch_size=BATCH, lr=self.lr)
        for _ in range(self.rounds):
            incoming = {}
            for name, part in zip(names, parts, strict=True):
                stolen.load_state_dict(server.dispatch([name])[name])
                training(stolen, dataset, part, generator=random)
                incoming[name] = {key: tensor.cpu().clone() for key, tensor in stolen.state_dict().items()}
            server.collect(incoming, samples={n: float(len(p)) for n, p in zip(names, parts, strict=True)}, strict=True)
        return server


def _triggers(dataset: Dataset) -> Source:
    """Questions of the kind that anybody would use for such data."""
    if dataset.kind == "text":
        return Tokens(dataset.input_shape[0], vocabulary=dataset.vocabulary)
    if dataset.kind == "tabular":
        return Vectors(dataset.input_shape[0])
    channels, height, width = dataset.input_shape
    return Patterns((channels, height, width), mean=dataset.mean, std=dataset.std)
