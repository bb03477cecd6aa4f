"""FedAvg: everybody gets the average. It is what a marked federation is measured against."""

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from tramark.errors import CheckpointError, one_line
from tramark.fleet.aggregation import Aggregation, Incoming, Samples, fold
from tramark.fleet.fleet import Fleet, Outgoing
from tramark.fleet.travels import Travels, travelling
from tramark.lab.methods.base import Scene
from tramark.marks.rounds import RoundReport
from tramark.vault.files import replace_file
from tramark.vault.packing import pack, unpack


class FedAvg:
    """The plain weighted average of the clients' models.

    >>> server = FedAvg(nn.Linear(4, 2), clients=["alice", "bob"])
    >>> server.collect(dict(server.dispatch())).used
    ('alice', 'bob')

    With a `checkpoint`, a file, it keeps its state there after each round, and `resume` goes on from it. `travels` says
    which part of the model is sent and averaged, if not all of it; the rest is constant.
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Iterable[str],
        *,
        checkpoint: Path | None = None,
        travels: Travels | None = None,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.fleet = Fleet(model, clients, None if travels is None else travelling(model, travels))
        self.round = 0
        self.checkpoint = checkpoint

    @classmethod
    def make(cls, model: nn.Module, scene: Scene) -> Self:
        return cls(model, scene.clients, checkpoint=scene.checkpoint, **scene.options)

    @property
    def marked(self) -> bool:
        return False

    def dispatch(self, clients: Iterable[str] | None = None) -> Mapping[str, dict[str, Tensor]]:
        return Outgoing(self.fleet, self.fleet.clients if clients is None else clients)

    def collect(self, incoming: Incoming, samples: Samples = None, *, strict: bool = False) -> RoundReport:
        report = self._play(incoming, samples, strict)
        self._save()
        return report

    def measure(self, samples: int | None = None) -> dict[str, Any]:
        return {}

    def warm_up(self) -> dict[str, Any]:
        return {}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        self.fleet.load_base(state["fleet"])
        self.round = int(state["round"])

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "clients": list(self.fleet.clients), "fleet": self.fleet.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken. The server must have been made with the same model and clients."""
        if list(state["clients"]) != list(self.fleet.clients):
            raise CheckpointError(f"a state of the clients {state['clients']} for a server of {self.fleet.clients}")
        self.fleet.load_state_dict(state["fleet"], state["clients"])
        self.round = int(state["round"])

    def resume(self) -> bool:
        if self.checkpoint is None or not self.checkpoint.exists():
            return False
        try:
            self.load_state_dict(unpack(self.checkpoint.read_bytes()))
        except Exception as error:  # a damaged file can break any part of the readers
            raise CheckpointError(f"{self.checkpoint} is not a checkpoint of this run: {one_line(error)}") from error
        return True

    def close(self) -> None:
        self.checkpoint = None

    def _play(self, incoming: Incoming, samples: Samples, strict: bool) -> RoundReport:
        """A whole round but for keeping the state."""
        aggregation = self.fleet.begin()
        refused = fold(aggregation, incoming, samples, strict=strict)
        self._finish(aggregation)
        self.round += 1
        self._mark()
        return RoundReport(self.round, tuple(aggregation.taken), refused)

    def _finish(self, aggregation: Aggregation) -> None:
        """Let the updates of a round take effect. Methods that aggregate in another way extend it."""
        aggregation.finish()

    def _mark(self) -> None:
        """Mark the models of the next round. A plain average has no marks."""

    def _save(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.checkpoint, pack(self.state_dict()))
