"""What the federation asks of a server, whatever its method.

A `Method` dispatches models, collects what comes back, measures its own models and keeps its state. Two things are
optional: `train_client`, if clients must do something of their own (`ClientSide`), and `verify`, if a suspect can be
verified (`Verifiable`). The columns in which methods are compared follow from these and from `Declared`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, get_args, runtime_checkable

from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.fleet.aggregation import Incoming, Samples
from tramark.fleet.fleet import Fleet
from tramark.keys.keyring import Keyring
from tramark.keys.sources import Source
from tramark.lab.simulation.client import Practice
from tramark.marks.rounds import RoundReport
from tramark.suspects.base import Suspect
from tramark.vault.store import Vault

Access = Literal["black-box", "white-box"]

Number = TypeVar("Number", int, float)

Origin = Literal["ours", "original", "table1"]
"""Whose parameters a baseline follows: ours, its own public code's, or those of the paper's Table 1, as they are in the
first commit of the paper's authors."""


def check_origin(source: str, known: Sequence[Origin] = get_args(Origin)) -> None:
    """`SettingError` if a baseline does not know these parameters."""
    if source not in known:
        raise SettingError(f"no source {source!r} of parameters: there are {', '.join(known)}")


def told(value: Number | None, otherwise: Number) -> Number:
    """A parameter, or what it is if it was not told."""
    return otherwise if value is None else value


class Method(Protocol):
    """One way to run the server's side of a federation."""

    model: nn.Module
    fleet: Fleet
    round: int

    @property
    def marked(self) -> bool:
        """Whether clients' models carry anything yet that can be verified."""

    def dispatch(self, clients: Iterable[str] | None = None) -> Mapping[str, dict[str, Tensor]]:
        """The models to send, by client."""

    def collect(self, incoming: Incoming, samples: Samples = None, *, strict: bool = False) -> RoundReport:
        """End a round with what clients returned, and keep the new state."""

    def measure(self, samples: int | None = None) -> dict[str, Any]:
        """How well its clients' models are verified now: numbers by name, and `per_client`; empty if unmarked.

        A method that verifies with a whole test set may take `samples` of it.
        """

    def warm_up(self) -> dict[str, Any]:
        """What was known when the warm-up ended and is not in the state any more, for `warm_start`."""

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Begin where another run's warm-up ended: take up its `round`, `fleet` (the base), `drift` and `warm_up`."""

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on later."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""

    def resume(self) -> bool:
        """Go on from the state that was kept; False if there is none yet."""

    def close(self) -> None:
        """Let go of the vault or file in which the state is kept; later rounds are not kept."""


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


@dataclass(frozen=True)
class Declared:
    """What a method that verifies suspects needs and can do; tests hold each declaration against a small federation.

    Parameters
    ----------
    access : what it must be given: a module with its weights (white-box), or anything that answers (black-box).
    names_clients : whether it tells clients apart, or shows only which federation a model comes from.
    resists_collusion : whether it is made to name at least one of several colluders.
    """

    access: Access
    names_clients: bool = True
    resists_collusion: bool = False


@runtime_checkable
class Verifiable(Protocol):
    """A method that can say something about a suspect."""

    declared: ClassVar[Declared]

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
    tests: tuple[Tensor, ...] = field(default=(), repr=False)
    """Each client's test triggers, raw, if issued models are verified with those."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own parameters, where they are not to be their defaults."""
    vault: Callable[[Keyring], Vault] | None = None
    """Creates or opens the vault for a keyring; a method with a keyring keeps its state there."""
    checkpoint: Path | None = None
    """The file in which a method without a keyring keeps its state."""


class Maker(Method, Protocol):
    """A method that can be made for a scene."""

    @classmethod
    def make(cls, model: nn.Module, scene: Scene) -> Self: ...
