"""Attacks on marks, by name; one file each."""

from collections.abc import Callable

from tramark.attacks.base import Attack, Collusion, Loot

ATTACKS: dict[str, Callable[..., Attack | Collusion]] = {}

__all__ = ["ATTACKS", "Attack", "Collusion", "Loot"]
