"""The ways to run a server, by name. A method is whatever dispatches models and collects what comes back."""

from tramark.lab.methods.base import ClientSide, Finding, Maker, Method, Scene, Verifiable
from tramark.lab.methods.blackcatt import BlackCATT
from tramark.lab.methods.fedavg import FedAvg
from tramark.lab.methods.fedcrmw import FedCRMW
from tramark.lab.methods.fedipr import FedIPR
from tramark.lab.methods.fedtracker import FedTracker
from tramark.lab.methods.mfl_owner import MFLOwner
from tramark.lab.methods.robwe import RobWE
from tramark.lab.methods.tramark import Traced
from tramark.lab.methods.waffle import Waffle
from tramark.lab.plugins import plugged

METHODS: dict[str, type[Maker]] = {
    "fedavg": FedAvg,
    "tramark": Traced,
    "waffle": Waffle,
    "fedtracker": FedTracker,
    "fedipr": FedIPR,
    "robwe": RobWE,
    "fedcrmw": FedCRMW,
    "blackcatt": BlackCATT,
    "mfl-owner": MFLOwner,
}
METHODS |= plugged("tramark.methods", METHODS)

__all__ = ["METHODS", "ClientSide", "FedAvg", "Finding", "Maker", "Method", "Scene", "Traced", "Verifiable"]
