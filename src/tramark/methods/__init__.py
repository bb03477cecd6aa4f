"""The ways to run a server, by name. A method is whatever dispatches models and collects what comes back."""

from tramark.methods.base import ClientSide, Finding, Maker, Method, Scene, Verifiable
from tramark.methods.fedavg import FedAvg
from tramark.methods.tramark import Traced

METHODS: dict[str, type[Maker]] = {
    "fedavg": FedAvg,
    "tramark": Traced,
}

__all__ = ["METHODS", "ClientSide", "FedAvg", "Finding", "Maker", "Method", "Scene", "Traced", "Verifiable"]
