"""What the federation asks of a server, whatever its method.

A `Method` dispatches models and collects what comes back. What else it does, it shows by having more: `train_client` if
clients must do something of their own (`ClientSide`), `verify` if a suspect can be verified (`Verifiable`). The columns
in which methods are compared are read off that, and off five declarations.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from tramark.fleet.fleet import Fleet
from tramark.keys.sources import Source
from tramark.server import Incoming, RoundReport, Samples
from tramark.suspects.base import Suspect

Access = Literal["black-box", "white-box"]


class Method(Protocol):
    """One way to run the server's side of a federation."""

    model: nn.Module
    fleet: Fleet
    round: int

    def dispatch(self, clients: Iterable[str] | None = None) -> Mapping[str, dict[str, Tensor]]:
        """The models to send, by client."""

    def collect(self, incoming: Incoming, samples: Samples = None, *, strict: bool = False) -> RoundReport:
        """End a round with what clients returned."""

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on later."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""


class Practice(Protocol):
    """A client's ordinary training on its own samples, ready to be called by a method that adds to it."""

    @property
    def generator(self) -> torch.Generator:
        """What decides everything random that the client does in this round."""

    @property
    def epochs(self) -> int:
        """How many epochs it takes, unless told."""

    def __call__(
        self,
        model: nn.Module,
        *,
        epochs: int | None = None,
        extra: Callable[[nn.Module], Tensor] | None = None,
        only: Collection[str] | None = None,
    ) -> float:
        """Train the model in place. `extra` is a loss that is added at every step; `only` these weights move."""

    def some(self, count: int) -> tuple[Tensor, Tensor]:
        """So many of the client's samples, raw, with their labels; the same ones each time."""

    def prepare(self, raw: Tensor) -> Tensor:
        """Raw inputs as the model takes them."""


@runtime_checkable
class ClientSide(Protocol):
    """A method that needs its clients' help."""

    def train_client(self, client: str, model: nn.Module, practice: Practice) -> None:
        """What a client does in a round, instead of `practice(model)`."""


@dataclass(frozen=True)
class Finding:
    """What a method says about a suspect.

    Parameters
    ----------
    accused : the clients that it names; none if it says nobody, or cannot name anybody.
    scores : every client's score, in the method's own measure.
    queries : how many inputs the suspect was asked; none for a look at its weights.
    owned : whether it says that the suspect is the federation's at all.
    conclusive : False if it cannot tell.
    """

    accused: tuple[str, ...]
    scores: dict[str, float]
    queries: int = 0
    owned: bool = False
    conclusive: bool = True


@runtime_checkable
class Verifiable(Protocol):
    """A method that can say something about a suspect."""

    access: ClassVar[Access]
    """What it must be given: a module with its weights, or anything that answers."""
    names_clients: ClassVar[bool]
    """Whether it tells clients apart, or shows only whose federation a model comes from."""
    resists_collusion: ClassVar[bool]
    """Whether it is made to name at least one of several colluders."""
    says_nobody: ClassVar[bool]
    """Whether it can find that a suspect is nobody's, or always points at somebody."""
    many_clients: ClassVar[bool]
    """Whether it takes more clients than the task has classes."""

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        """Say whose a suspect is. A white-box method takes a module of the federation's architecture."""

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """How much of a client's mark a suspect bears, from 0 to 1. It is for judging methods, not suspects."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What a method is made for: the clients, the task and where secrets come from."""

    clients: tuple[str, ...]
    classes: int
    source: Source
    """Questions in the task's shape, and how the model is fed."""
    secret: bytes = field(repr=False)
    warmup: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own parameters, where they are not to be their defaults."""


class Maker(Method, Protocol):
    """A method that can be made for a scene."""

    @classmethod
    def make(cls, model: nn.Module, scene: Scene) -> Self: ...
