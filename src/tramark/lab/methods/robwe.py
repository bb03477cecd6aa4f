"""RobWE: every client has a head of its own that bears its mark, on a representation in which each owns a slice.

The last linear layer is the client's private head h_i and never averaged; the rest is the shared representation, as in
FedRep. A round trains the head first and then the representation (10 + 1 epochs). Private mark: 256 bits in h_i, by
adding 0.2 Σ relu(−b_i·(h_i M_i)). Shared mark: client i owns a slice s_i, every n-th of the shared weights, in which it
puts 100 bits by adding 0.1 times the mean binary cross-entropy of s_i M'_i, so that nobody's bits are in another's way.
The head tells whose a model is.

The server checks each returned slice before it averages: a client whose bit accuracy lies below the 0.997 interval of
its peers' (mean − 2.97 standard deviations) is left out of the round. Bits take a few rounds to sink in, so a client's
k-th time is compared with the others' k-th times; where fewer of them have come so far than there are others in the
round, nobody is left out.

With `source="original"`, as in the public code, the scales of the norm layers are private, too, and the private mark is
in them instead of the head; so the net must have norm layers (cnn-bn, alexnet-bn, vgg16-bn).

Our readings: slices are strided, not blocks, since bits are harder to put into some layers than into others, and peers
must be alike. The deviation is at least that of m tosses of a coin with the peers' mean, and at least `deviation`, or a
few peers that happen to be alike would shut out honest ones. And whoever is left out may try again, while the source's
code bans it, and after seven bans judges by the banned ones' accuracies instead. Like any such interval, it is wide
once several cheat at a time.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import NormalDist, fmean, pstdev
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tramark.errors import SettingError, UpdateError
from tramark.fleet.aggregation import Incoming, Samples
from tramark.fleet.layout import Slot, State
from tramark.fleet.region import Places
from tramark.fleet.scratch import device_of
from tramark.lab.methods.base import Declared, Finding, Origin, Scene, check_origin
from tramark.lab.methods.bits import NORMS, BitKey, Picked, needed, read, read_suspect
from tramark.lab.methods.watermarked import Watermarked
from tramark.lab.simulation.client import Practice
from tramark.marks.rounds import RoundReport
from tramark.suspects.base import Suspect


class RobWE(Watermarked):
    """Personal heads with the clients' bits in them, on a representation of which each marks a slice.

    >>> from tramark.keys.sources import for_shape
    >>> from tramark.lab import data
    >>> from tramark.lab import models
    >>> from tramark.lab.simulation.partition import iid
    >>> from tramark.lab.simulation.simulator import Simulation
    >>> digits = data.load("digits")
    >>> model = models.build("mlp", input_shape=digits.input_shape, classes=10, seed=0)
    >>> method = RobWE.make(model, Scene(("alice", "bob"), classes=10, source=for_shape((1, 8, 8)), secret=b"s" * 32))
    >>> parts = iid(digits.train_labels, 2, generator=torch.Generator().manual_seed(0))
    >>> simulation = Simulation(method, digits, parts)
    >>> simulation.step()["vr"], method.verify(model).accused
    (1.0, ())

    Parameters
    ----------
    model : a classifier whose last linear layer is the head.
    scene : as for all.
    source : where the private mark is. Table 1 of the paper has no RobWE.
    bits : of a head, or of the scales; at most one for two of its weights, which `bits` then says.
    slice_bits : of a slice; likewise.
    alpha, slice_weight : how hard they are pulled.
    head_epochs, representation_epochs : what a client trains in a round. If the run's local epochs are fewer than
        both together, they are shared out in the same proportion, at least one to each.
    interval, deviation : how much of the peers' distribution counts as honest, and how wide it is at least.
    reach : at most so many weights carry a mark, evenly spread over the head or the slice: the source's nets have no
        larger slices, and for a net of 10⁸ weights matrices for all of them would not fit in memory.
    false_accusation : the bound on the probability that anybody is accused of, or claims, a stranger's model.
    """

    declared: ClassVar[Declared] = Declared("white-box")

    def __init__(
        self,
        model: nn.Module,
        scene: Scene,
        *,
        source: Origin = "ours",
        bits: int = 256,
        slice_bits: int = 100,
        alpha: float = 0.2,
        slice_weight: float = 0.1,
        head_epochs: int = 10,
        representation_epochs: int = 1,
        interval: float = 0.997,
        deviation: float = 0.025,
        reach: int = 16_384,
        false_accusation: float = 1e-6,
    ) -> None:
        if head_epochs < 1 or representation_epochs < 1:
            raise SettingError(f"{head_epochs} + {representation_epochs} epochs: both parts must be trained")
        if not 0 < interval < 1:
            raise SettingError(f"an interval of {interval}: it is a share of the peers, such as 0.997")
        super().__init__(model, scene)
        self.alpha, self.slice_weight = alpha, slice_weight
        self.head_epochs, self.representation_epochs = head_epochs, representation_epochs
        self.interval, self.deviation = interval, deviation
        check_origin(source, ("ours", "original"))
        layout, count = self.fleet.layout, len(self.fleet.clients)
        marked = self._head = _head(model, layout.slots)
        if source == "original":
            marked = _scales(model)
            self._head = [*self._head, *marked]
        self._shared = [name for name in layout.tensors if name not in self._head]
        private = sum(layout.slots[name].shape.numel() for name in self._head)
        head = sum(layout.slots[name].shape.numel() for name in marked)
        length = (layout.size - private) // count
        self.bits, self.slice_bits = min(bits, min(head, reach) // 2), min(slice_bits, min(length, reach) // 2)
        if self.slice_bits < 1:
            raise SettingError(f"{layout.size - private} shared weights are too few for slices of {count} clients")
        self.needed = needed(self.bits, count, false_accusation)
        self.needed_together = needed(self.slice_bits * count, 1, false_accusation)
        self._carrier = Picked.of(layout, marked, _spread(head, reach))
        self._slices = {
            client: Picked.of(layout, self._shared, i + count * _spread(length, reach))
            for i, client in enumerate(self.fleet.clients)
        }
        self._keys: dict[tuple[str, str], BitKey] = {}
        self._history: dict[str, list[float]] = {}
        places = torch.cat([torch.arange(layout.slots[n].start, layout.slots[n].stop) for n in self._head])
        region = Places(places.sort().values)
        self.fleet.settle(region, region.take(self.fleet.base).repeat(count, 1))

    def train_client(self, client: str, model: nn.Module, practice: Practice) -> None:
        head, own = (self._key(client, part).to(device_of(model)) for part in ("head", "slice"))
        on_head, on_representation = self._epochs(practice.epochs)
        practice(
            model,
            epochs=on_head,
            extra=lambda model: self.alpha * head.hinge(read(model, self._carrier)),
            only=self._head,
        )
        practice(
            model,
            epochs=on_representation,
            extra=lambda model: self.slice_weight * own.cross_entropy(read(model, self._slices[client])),
            only=self._shared,
        )

    def collect(self, incoming: Incoming, samples: Samples = None, *, strict: bool = False) -> RoundReport:
        """Check everybody's slices, and average those that pass. Whoever does not keeps the head it had, too."""
        check = _Check(self, strict)
        report = self._play(check.passing(incoming), samples, strict)
        used = tuple(client for client in check.accuracies if client in report.used)
        for client in used:
            self._history.setdefault(client, []).append(check.accuracies[client])
        self._save()
        return replace(report, used=used, refused=report.refused | check.left_out)

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        """Whose head it is: everybody who has enough right bits in it that, over all n clients, chance would do it
        with probability `false_accusation` at most (binomial, Bonferroni). A head that is nobody's may stand on the
        federation's representation, which all slices' bits together then show. Scores are the heads' bit accuracies.
        """
        values = read_suspect(suspect, self._carrier)
        right = {client: self._key(client, "head").matches(values) for client in self.fleet.clients}
        accused = tuple(client for client, count in right.items() if count >= self.needed)
        return Finding(
            accused=accused,
            scores={client: count / self.bits for client, count in right.items()},
            owned=bool(accused) or self._shared_matches(suspect) >= self.needed_together,
        )

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """The client's bit accuracy in the head; a stranger's model has about one half of its bits."""
        return self._key(client, "head").matches(read_suspect(suspect, self._carrier)) / self.bits

    def slice_accuracy(self, state: State, client: str) -> float:
        """A client's bit accuracy in its slice of a state dict: what the server checks."""
        values = self._slices[client].take(state).detach().cpu()
        return self._key(client, "slice").matches(values) / self.slice_bits

    def state_dict(self) -> dict[str, Any]:
        history = {client: list(accuracies) for client, accuracies in self._history.items()}
        return super().state_dict() | {"history": history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._history = {client: list(accuracies) for client, accuracies in state["history"].items()}

    def _epochs(self, given: int) -> tuple[int, int]:
        """How many go to the head and to the representation."""
        both = self.head_epochs + self.representation_epochs
        if given >= both:
            return self.head_epochs, self.representation_epochs
        representation = max(1, round(given * self.representation_epochs / both))
        return max(1, given - representation), representation

    def _key(self, client: str, part: str) -> BitKey:
        """Keys are kept once drawn: verification needs everybody's again and again."""
        if (client, part) not in self._keys:
            head = part == "head"
            carrier, bits = (self._carrier, self.bits) if head else (self._slices[client], self.slice_bits)
            secret = self.scene.secret
            self._keys[client, part] = BitKey.draw(secret, "robwe", part, client, size=carrier.size, bits=bits)
        return self._keys[client, part]

    def _shared_matches(self, suspect: nn.Module | Suspect) -> int:
        return sum(
            self._key(client, "slice").matches(read_suspect(suspect, picked)) for client, picked in self._slices.items()
        )


class _Check:
    """One round's check. Only at its end are all peers known, so that an update with a wrong bit waits until then; one
    without can never be below any interval, and passes at once."""

    def __init__(self, server: RobWE, strict: bool) -> None:
        self.server, self.strict = server, strict
        self.accuracies: dict[str, float] = {}
        self.left_out: dict[str, str] = {}

    def passing(self, incoming: Incoming) -> Iterator[tuple[str, State]]:
        server, waiting = self.server, dict[str, dict[str, Tensor]]()
        for client, state in incoming.items() if isinstance(incoming, Mapping) else incoming:
            if client not in server.fleet.clients or server.fleet.layout.problem(state):
                yield client, state  # to be refused where all such are
            elif client in self.accuracies:
                error = UpdateError(client, "a second update in one round")
                if self.strict:
                    raise error
                self.left_out[client] = error.reason
            else:
                self.accuracies[client] = server.slice_accuracy(state, client)
                if self.accuracies[client] == 1:
                    yield client, state
                else:
                    waiting[client] = {name: tensor.detach().clone() for name, tensor in state.items()}
        for client, held in waiting.items():
            lowest, accuracy = self._lowest(client), self.accuracies[client]
            if accuracy >= lowest:
                yield client, held
            else:
                self.left_out[client] = (
                    f"its slice has {accuracy:.0%} of its bits right; among its peers, {lowest:.1%} is the least"
                )

    def _lowest(self, client: str) -> float:
        """The least accuracy that this time of the client's may have."""
        so_far = {c: [*self.server._history.get(c, ()), *self._now(c)] for c in self.server.fleet.clients}
        time = len(so_far[client]) - 1
        peers = [accuracies[time] for c, accuracies in so_far.items() if c != client and len(accuracies) > time]
        if len(peers) < max(1, len(self.accuracies) - 1):
            return -math.inf
        mean = fmean(peers)
        coin = math.sqrt(mean * (1 - mean) / self.server.slice_bits)
        deviation = max(pstdev(peers), coin, self.server.deviation)
        return NormalDist(mean, deviation).inv_cdf((1 - self.server.interval) / 2)

    def _now(self, client: str) -> list[float]:
        return [self.accuracies[client]] if client in self.accuracies else []


def _head(model: nn.Module, slots: Mapping[str, Slot]) -> list[str]:
    """The names of the last linear layer's weights."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    names = [f"{name}.{part}" for name in linear[-1:] for part in ("weight", "bias") if f"{name}.{part}" in slots]
    if not names:
        raise SettingError(f"{type(model).__name__} has no trainable linear layer to be the clients' head")
    return names


def _scales(model: nn.Module) -> list[str]:
    """The names of the norm layers' scales."""
    names = [f"{name}.weight" for name, module in model.named_modules() if isinstance(module, NORMS)]
    if not names:
        raise SettingError(
            f"{type(model).__name__} has no norm layers to carry the private marks: take a net with batch norm (cnn-bn)"
        )
    return names


def _spread(length: int, most: int) -> Tensor:
    """Places 0 … length - 1, or `most` of them at even distances."""
    count = min(length, most)
    return torch.arange(count) * length // count
