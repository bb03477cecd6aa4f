"""What every way to make marks can do."""

from typing import Protocol

from torch import nn

from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.keys.keyring import Keyring


class Injection(Protocol):
    """A way to make marks."""

    def layers(self, model: nn.Module) -> tuple[str, ...]:
        """Names of the layers whose inputs' second moment is wanted, in the order in which the model runs them."""

    def begin(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> Keyring:
        """Choose region and questions at the end of warm-up; returns the keyring with the chosen questions."""

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> None:
        """Make everyone's marks for the fleet's present base. `model` is scratch space."""
