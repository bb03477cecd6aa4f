"""Attacks on marks, by name; one file each."""

from collections.abc import Callable

from tramark.attacks.base import Attack, Collusion, Loot
from tramark.attacks.catalogue_inference import INFERENCE_AND_COLLUSION
from tramark.attacks.catalogue_training import WEIGHTS_AND_TRAINING

ATTACKS: dict[str, Callable[..., Attack | Collusion]] = {**WEIGHTS_AND_TRAINING, **INFERENCE_AND_COLLUSION}

__all__ = ["ATTACKS", "Attack", "Collusion", "Loot"]
