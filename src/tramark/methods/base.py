"""What the federation asks of a server, whatever its method. `TraMark` is a method as it stands."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from tramark.fleet import Fleet
from tramark.server import Incoming, RoundReport, Weights


class Method(Protocol):
    """One way to run the server's side of a federation."""

    model: nn.Module
    fleet: Fleet
    round: int

    def dispatch(self, clients: Iterable[str] | None = None) -> Mapping[str, dict[str, Tensor]]:
        """The models to send, by client."""

    def collect(self, incoming: Incoming, weights: Weights = None, *, strict: bool = False) -> RoundReport:
        """End a round with what clients returned."""

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on later."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""
