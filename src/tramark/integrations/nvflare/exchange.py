"""The models of one round: each client's own out, and updates with the marks taken off back in."""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from tramark.errors import SettingError, UpdateError
from tramark.fleet.aggregation import Aggregation
from tramark.fleet.layout import State
from tramark.integrations.nvflare.weights import like, state_of
from tramark.marks.rounds import RoundReport
from tramark.server import TraMark

Params = MutableMapping[str, Any]
"""A model as FLARE's workflows hold it: arrays by name."""


class Exchange:
    """Stands between a workflow, which knows one model, and the clients, of which each has its own."""

    def __init__(self, server: TraMark, params: Params) -> None:
        self.server = server
        self._example = dict.fromkeys(server.fleet.names, next(iter(params.values())))
        self._aggregation: Aggregation | None = None
        self._base: State | None = None

    def personal(self, client: str, params: Params) -> dict[str, Any]:
        """A client's own model; `SettingError` if the workflow means to send anything else than the base."""
        base, given = self.base, state_of(params)
        if given.keys() != base.keys() or not all(_equal(given[name], base[name]) for name in base):
            raise SettingError(
                "a task sends a model that is not the base of this federation: it would reach a client without its "
                "mark, or with another client's. Cross-site evaluation does that, and so does a workflow that does "
                "not announce its models by events"
            )
        return like(params, self.server.dispatch([client])[client])

    def take(self, client: str, params: Params, *, difference: bool, weight: Any = None) -> dict[str, Any]:
        """What the workflow is to aggregate for a client: its update without its mark, or nothing if it is refused."""
        self._aggregation = aggregation = self._aggregation or self.server.begin()
        fleet = self.server.fleet
        try:
            returned = state_of(params)
            if difference:
                returned = _sum(fleet.state(client), returned)
            aggregation.add(client, returned, 1.0 if weight is None else float(weight))
        except UpdateError:
            return {}
        except Exception as error:  # whatever a client may send that is not an array or a number
            self.refuse(client, f"its arrays or its weight cannot be read ({type(error).__name__})")
            return {}
        return dict(params) if difference else like(params, fleet.unmarked(client, returned))

    def refuse(self, client: str, reason: str) -> None:
        """Note that a client's update is not used."""
        self._aggregation = aggregation = self._aggregation or self.server.begin()
        try:
            aggregation.refuse(client, reason)
        except UpdateError:
            return

    def end(self, params: Params) -> RoundReport:
        """End the round with the model that the workflow has made, and give it back as the vault has it, in place."""
        aggregation, base = self._aggregation or self.server.begin(), None
        if aggregation.taken:
            base = {**self.base, **state_of(params)}
            # A mean in single precision differs from the exact one in the last bit: two runs would drift apart.
            if aggregation.gives(base):
                base = None
        report = self.server.end(aggregation, base)
        self._aggregation = self._base = None
        self.give_back(params)
        return report

    def give_back(self, params: Params) -> None:
        """Replace a workflow's model by the base, in place."""
        params.update(like(self._example, self.base))

    @property
    def base(self) -> State:
        """The unmarked base, made once a round."""
        if self._base is None:
            self._base = self.server.fleet.state()
        return self._base


def _equal(given: Tensor, base: Tensor) -> bool:
    return given.shape == base.shape and torch.equal(given.to(base), base)


def _sum(sent: State, difference: State) -> State:
    """What a client has now, if it returned the difference to what it was sent."""
    return {
        name: (sent[name] + tensor).to(sent[name].dtype)
        if name in sent and sent[name].shape == tensor.shape
        else tensor
        for name, tensor in difference.items()
    }
