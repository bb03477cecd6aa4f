"""What a thief does to a model before it turns up somewhere.

An attack takes its parameters when it is made, and then a model and the thief's own data; it gives the model that
turns up, or, if it lies in how answers are given, a suspect. The model it was given stays as it was. A collusion takes
the models of several thieves. Neither ever sees a vault, a keyring or anybody else's data. Attacks are frozen
dataclasses: their `repr` says all, and with their `seed` it says what comes out.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tramark.lab.data import Dataset
from tramark.suspects.base import Suspect


@dataclass(frozen=True, eq=False)
class Loot:
    """What a thief has besides the model: samples of its own, and how the model is fed."""

    dataset: Dataset
    indices: Tensor
    """Which of the training samples are the thief's."""

    @property
    def inputs(self) -> Tensor:
        """The thief's samples, raw."""
        return self.dataset.train_inputs[self.indices]

    @property
    def labels(self) -> Tensor:
        return self.dataset.train_labels[self.indices]

    @property
    def classes(self) -> int:
        return self.dataset.classes

    def prepare(self, raw: Tensor) -> Tensor:
        """Raw inputs as the model takes them."""
        return self.dataset.prepare(raw)


class Attack(Protocol):
    """One way to get rid of a mark."""

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module | Suspect:
        """What turns up. The model is left as it was."""


@runtime_checkable
class Collusion(Protocol):
    """Several thieves who put their models together."""

    @property
    def colluders(self) -> int:
        """How many."""

    def collude(self, models: Sequence[nn.Module], loot: Loot) -> nn.Module:
        """What turns up, made of all their models; the data is the first one's."""


def copied(model: nn.Module) -> nn.Module:
    """A copy to work on, in evaluation mode."""
    return copy.deepcopy(model).eval()


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
