"""Small federations on the handwritten digits: their data, keyrings, scenes and simulations."""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

from nets import drawing
from torch import Tensor, nn

from tramark.keys.keyring import Keyring
from tramark.keys.pictures import Patterns
from tramark.keys.sources import Source
from tramark.lab.data import Dataset, load
from tramark.lab.methods import Method, Scene
from tramark.lab.simulation.client import LocalTraining
from tramark.lab.simulation.partition import iid
from tramark.lab.simulation.simulator import Simulation

SECRET = b"s" * 32
CLIENTS = ("alice", "bob", "carol")


@cache
def digits() -> Dataset:
    return load("digits")


def ring(**options: Any) -> Keyring:
    """Secret codewords for 8×8 images, unless told otherwise."""
    known: dict[str, Any] = {"clients": CLIENTS, "classes": 10, "questions": 16, "common": 0, "secret": SECRET}
    if "source" not in options:
        known["input_shape"] = (1, 8, 8)
    return Keyring.generate(**known | options)


def scene(
    source: Source | None = None,
    *,
    clients: tuple[str, ...] = CLIENTS,
    classes: int = 10,
    secret: bytes = SECRET,
    warmup: int = 0,
    **options: Any,
) -> Scene:
    """A scene for models of the digits, with these options of the method."""
    source = source or Patterns((1, 8, 8), mean=digits().mean, std=digits().std)
    return Scene(clients, classes, source, secret, warmup=warmup, options=options)


def simulate(
    method: Method, training: LocalTraining | None = None, *, samples: int | None = 240, **options: Any
) -> Simulation:
    """The method's clients with so many digits each."""
    parts = iid(digits().train_labels, len(method.fleet.clients), generator=drawing(), samples_per_client=samples)
    return Simulation(method, digits(), parts, training or LocalTraining(epochs=3, batch_size=16), **options)


def with_state(method: Method, state: Mapping[str, Tensor]) -> nn.Module:
    """The method's model with a state loaded into it."""
    model = copy.deepcopy(method.model)
    model.load_state_dict(dict(state))
    return model.eval()


def issued(method: Method, client: str) -> nn.Module:
    """A client's model as it is sent."""
    return with_state(method, method.fleet.state(client))
