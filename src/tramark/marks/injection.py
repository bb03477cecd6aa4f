"""What every way to make marks can do, and the words between it and the server."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from torch import Tensor, nn

from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.region import Region
from tramark.keys.keyring import Keyring
from tramark.marks.search import AnswerSheet
from tramark.marks.survival import Survived

CARRIED = 0.75
"""A model that gives a smaller share of its answers as it is issued does not count as marked."""


@dataclass(frozen=True)
class Plan:
    """What the next marks are to be like; the server keeps it with its state.

    Parameters
    ----------
    layers : where marks are written, in the order in which the model runs the layers; none for a region of places.
    margin : by how many logits the answers are to lead.
    limit : what the marks may cost at most.
    calm : how large clients' updates of the other layers were before there were marks; zero if not known.
    vain : rounds for which the largest cost has not been enough.
    times : how often marks were made before.
    """

    layers: tuple[str, ...] = ()
    margin: float = 8.0
    limit: float = 0.01
    calm: float = 0.0
    vain: int = 0
    times: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The plan that `to_dict` wrote."""
        return cls(**{**plain, "layers": tuple(plain["layers"])})


@dataclass(frozen=True)
class Made:
    """What became of a plan.

    Parameters
    ----------
    layers, questions : where the marks are, and to how many questions.
    margin : by how many logits the answers lead, in the median.
    reached : the share of the answers that the issued models give.
    cost : how far issued models' answers move on the clients' data, estimated (`Draft.cost`).
    unmarked : the clients whose models give too few of their answers to carry a mark.
    """

    layers: tuple[str, ...]
    questions: int
    margin: float
    reached: float
    cost: float
    unmarked: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` made of it."""
        return cls(**{**plain, "layers": tuple(plain["layers"]), "unmarked": tuple(plain["unmarked"])})


def made_of(led: Tensor, sheet: AnswerSheet, layers: Sequence[str], clients: Sequence[str], cost: float) -> Made:
    """What was made of a plan, from how far the answers lead: clients × inputs."""
    asked = sheet.answers[:, sheet.owner] >= 0
    given = [float((own[of] > 0).float().mean()) for own, of in zip(led, asked, strict=True)]
    return Made(
        tuple(layers),
        sheet.answers.shape[1],
        float(led[asked].median()),
        sum(given) / len(given),
        cost,
        tuple(client for client, share in zip(clients, given, strict=True) if share < CARRIED),
    )


class Injection(Protocol):
    """A way to make marks."""

    @property
    def early(self) -> bool:
        """Whether the region is chosen a round before the warm-up ends, from the first client's own weights."""

    @property
    def waits(self) -> bool:
        """Whether the first marks are made a round after the region was chosen, from clients' own weights in it."""

    def layers(self, model: nn.Module, odd: Collection[str] = ()) -> tuple[str, ...]:
        """Names of the layers whose inputs' second moment is wanted: those that marks may be written into.

        Layers in `odd` cannot bear marks, and are not chosen by themselves.
        """

    def begin(
        self,
        model: nn.Module,
        fleet: Fleet,
        keyring: Keyring,
        drift: Drift,
        updates: Sequence[Mapping[str, Tensor]],
        local: Tensor | None = None,
    ) -> tuple[Keyring, Plan] | None:
        """Choose region and questions at the end of warm-up; returns the keyring with the chosen questions.

        `updates` are some clients' last updates, to see what training would do to marks; `local` are the weights that
        the first client returned, if they are known. None if the model does not bear marks as it is now.
        """

    @property
    def on_demand(self) -> bool:
        """Whether a client's mark can be made at any time, from base, keyring and drift: then there is `make`."""

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, plan: Plan) -> Made | None:
        """Make everyone's marks for the fleet's present base. `model` is scratch space."""

    def make(
        self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, plan: Plan, clients: Sequence[str]
    ) -> tuple[Region, Tensor, Made]:
        """The region, the marks of some clients, and what they are like."""

    def steer(self, plan: Plan, made: Made, survived: Survived) -> Plan:
        """The plan for the next marks, from what was made and what clients' training left of it."""
