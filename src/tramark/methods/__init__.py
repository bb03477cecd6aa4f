"""The other ways to run a server. A method is whatever dispatches models and collects what comes back."""

from tramark.methods.base import Method
from tramark.methods.fedavg import FedAvg

__all__ = ["FedAvg", "Method"]
