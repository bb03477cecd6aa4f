"""FedAvg: everybody gets the average. It is what a marked federation is measured against."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Self

from torch import Tensor, nn

from tramark.fleet.fleet import Fleet, Outgoing
from tramark.lab.methods.base import Scene
from tramark.server import Incoming, RoundReport, Samples, fold


class FedAvg:
    """The plain weighted average of the clients' models.

    >>> server = FedAvg(nn.Linear(4, 2), clients=["alice", "bob"])
    >>> server.collect(dict(server.dispatch())).used
    ('alice', 'bob')
    """

    def __init__(self, model: nn.Module, clients: Iterable[str]) -> None:
        self.model = copy.deepcopy(model)
        self.fleet = Fleet(model, clients)
        self.round = 0

    @classmethod
    def make(cls, model: nn.Module, scene: Scene) -> Self:
        return cls(model, scene.clients)

    def dispatch(self, clients: Iterable[str] | None = None) -> Mapping[str, dict[str, Tensor]]:
        return Outgoing(self.fleet, self.fleet.clients if clients is None else clients)

    def collect(self, incoming: Incoming, samples: Samples = None, *, strict: bool = False) -> RoundReport:
        aggregation = self.fleet.begin()
        refused = fold(aggregation, incoming, samples, strict=strict)
        aggregation.finish()
        self.round += 1
        return RoundReport(self.round, tuple(aggregation.taken), refused)

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "clients": list(self.fleet.clients), "fleet": self.fleet.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.fleet.load_state_dict(state["fleet"], state["clients"])
        self.round = int(state["round"])
