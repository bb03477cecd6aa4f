"""The columns in which methods are compared, as a method has or declares them."""

import sys

from tramark.lab.methods.base import ClientSide, Declared

COLUMNS = ("black_box", "server_side", "traceable", "collusion")

ABSENT = {
    "DUW": "replaces the model's head by a decoder of its own: what is deployed, and may leak, is another model",
}
"""Methods that the paper mentions and that are not compared, and why."""


def columns(method: type) -> dict[str, bool]:
    """What a method can do.

    black_box: a suspect is verified by its answers alone. server_side: clients train as they always did. traceable: a
    client is named. collusion: it is made to name one of several colluders.

    >>> from tramark.lab.methods.fedavg import FedAvg
    >>> [name for name, has in columns(FedAvg).items() if has]
    ['server_side']
    """
    declared: Declared | None = getattr(method, "declared", None)
    return {
        "black_box": declared is not None and declared.access == "black-box",
        "server_side": not issubclass(method, ClientSide),
        "traceable": declared is not None and declared.names_clients,
        "collusion": declared is not None and declared.resists_collusion,
    }


def summary(method: type) -> str:
    """A method in one line: the first sentence of its module's docstring."""
    first = " ".join((sys.modules[method.__module__].__doc__ or "").partition("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".")
