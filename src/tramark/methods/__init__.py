"""The ways to run a server, by name. A method is whatever dispatches models and collects what comes back."""

from tramark.methods.base import ClientSide, Finding, Maker, Method, Scene, Verifiable
from tramark.methods.blackcatt import BlackCATT
from tramark.methods.fedavg import FedAvg
from tramark.methods.fedcrmw import FedCRMW
from tramark.methods.fedipr import FedIPR
from tramark.methods.fedtracker import FedTracker
from tramark.methods.robwe import RobWE
from tramark.methods.tramark import Traced
from tramark.methods.waffle import Waffle

METHODS: dict[str, type[Maker]] = {
    "fedavg": FedAvg,
    "tramark": Traced,
    "waffle": Waffle,
    "fedtracker": FedTracker,
    "fedipr": FedIPR,
    "robwe": RobWE,
    "fedcrmw": FedCRMW,
    "blackcatt": BlackCATT,
}

__all__ = ["METHODS", "ClientSide", "FedAvg", "Finding", "Maker", "Method", "Scene", "Traced", "Verifiable"]
