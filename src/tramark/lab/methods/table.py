"""The columns in which methods are compared, each read off what a method has or declares."""

import sys

from tramark.lab.methods.base import ClientSide

COLUMNS = ("black_box", "server_side", "traceable", "says_nobody", "collusion", "many_clients")


def columns(method: type) -> dict[str, bool | str]:
    """What a method can do.

    black_box: a suspect is verified by its answers alone. server_side: clients train as they always did. traceable: a
    client is named. says_nobody: a suspect can be found to be nobody's. collusion: it is made to name one of several
    colluders. many_clients: there may be more clients than classes.

    >>> from tramark.lab.methods.fedavg import FedAvg
    >>> [name for name, has in columns(FedAvg).items() if has]
    ['server_side']
    """
    # A class is no instance of a protocol with data members, and issubclass refuses those; its attributes tell as much.
    verifiable = all(hasattr(method, name) for name in ("verify", "confidence"))

    def declared(name: str) -> bool:
        return verifiable and bool(getattr(method, name))

    return {
        "black_box": verifiable and getattr(method, "access", None) == "black-box",
        "server_side": not issubclass(method, ClientSide),
        "traceable": declared("names_clients"),
        "says_nobody": declared("says_nobody"),
        "collusion": declared("resists_collusion"),
        "many_clients": declared("many_clients"),
    }


def summary(method: type) -> str:
    """A method in one line: the first sentence of its module's docstring."""
    first = " ".join((sys.modules[method.__module__].__doc__ or "").partition("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".")
