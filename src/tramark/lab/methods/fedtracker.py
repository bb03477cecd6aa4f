"""FedTracker: one watermark for all, which shows by answers whose federation a model comes from, and for each client a
fingerprint, which shows by a look at the weights whom the model was sent to.

**Watermark.** After each aggregation the model is trained on WAFFLE's questions, with batch norm as in evaluation,
until it answers 98 % of them or 100 passes are over. So that this does not undo what clients learnt, every gradient g
is projected, tensor by tensor, against a memory m = Σ over rounds of (aggregate − previous global model) if
⟨g, m⟩ < 0:

    min ½ ‖x − g‖²  subject to  ⟨x, m⟩ ≥ 0,   whose dual is   min ½ (‖m‖² + ε) v² + ⟨g, m⟩ v  subject to  v ≥ γ

with x = g + v m; the ridge ε = 1e-3 and the margin γ = 0.5 are GEM's. With one constraint the dual is a parabola on a
half-line, and v = max(γ, −⟨g, m⟩ / (‖m‖² + ε)). A step goes *against* x, and m is where clients' training goes. So the
published sign lets those steps pass that undo clients' work, and turns those that agree with it. With
`projection="reversed"` −m takes the place of m, which is what GEM means: no projected step goes against m.

**Fingerprint.** Client i has 128 bits b_i = ±1, all clients' as far apart as a genetic search gets them, and a secret
matrix M_i of N(0, 1). Its model is the watermarked one with the carrier w moved down the gradient of
Σ max(0, 0.5 − b_i ∘ M_i w), six steps or until its own similarity, mean(min(b_i ∘ M_i w, 0.5)) / 0.5, is the largest of
all clients' and at least 0.85. The carrier is the scale weights of the last three norm layers; in nets without enough
of these the mean kernel over the outputs of the last convolutions or, failing that, of linear layers.
Fingerprints are made anew each round, from the average of all that clients returned, fingerprints and all. A suspect is
traced to the client with the largest similarity, if its answers show that it is the federation's at all; there is no
bound on accusing an innocent client.

Two things differ from the source. With its rate of 5e-4 the watermark takes many rounds to reach 98 %: here that rate
is doubled after every ten passes that did not suffice, and steps are cut to norm one. And its steps of 5e-3 for the
fingerprint, which suit scales near one, overshoot with mean kernels: here none is longer than Polyak's, loss over
squared gradient, which would bring the loss to zero were it linear.

S. Shao et al.: FedTracker: Furnishing Ownership Verification and Traceability for Federated Learning Model. IEEE TDSC
2024. D. Lopez-Paz, M. Ranzato: Gradient Episodic Memory for Continual Learning. NeurIPS 2017.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tramark.errors import SettingError, SuspectError
from tramark.fleet.aggregation import Aggregation
from tramark.fleet.layout import Layout, Slot
from tramark.fleet.region import Places
from tramark.lab.methods.base import Declared, Finding, Scene
from tramark.lab.methods.bits import normal
from tramark.lab.methods.waffle import Rehearsal, Taught
from tramark.marks.layers import linear_layers
from tramark.suspects.base import Suspect

Projection = Literal["published", "reversed", "off"]


def project(gradient: Tensor, memory: Tensor, *, margin: float = 0.5, ridge: float = 1e-3) -> Tensor:
    """A gradient that does not go against the memory: GEM's quadratic programme with one constraint, solved.

    >>> project(torch.tensor([1.0, -2.0]), torch.tensor([0.0, 1.0]), margin=0, ridge=0)
    tensor([1., 0.])
    """
    along = torch.dot(gradient.flatten(), memory.flatten())
    if along >= 0:
        return gradient
    power = torch.dot(memory.flatten(), memory.flatten()) + ridge
    return gradient + torch.clamp(-along / power, min=margin) * memory


@dataclass(frozen=True, eq=False)
class Carrier:
    """The numbers w that bear fingerprints: the mean over the outputs of some layers' weights.

    A norm layer's scales count as one output. Moving w moves all outputs alike.
    """

    names: tuple[str, ...]
    """The tensors, in the order in which they lie in the flat vector."""
    slots: tuple[Slot, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, bits: int) -> Self:
        """The first of norms, convolutions, hidden linear and all linear layers that have two numbers for each bit.

        The fewer numbers there are, the more a fingerprint bends them; if no kind has twice as many as bits, the first
        that has as many must do. Layers are taken from the last backwards, of norms three at least.
        """
        modules = {name: m for name, m in model.named_modules() if _weight(name) in layout.slots}
        norms = [n for n, m in modules.items() if isinstance(m, (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm))]
        convolutions = [n for n, m in modules.items() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d))]
        linear = linear_layers(model)
        found: list[Self] = []
        for layers, least in ((norms[::-1], 3), (convolutions[::-1], 1), (linear[:-1], 1), (linear, 1)):
            taken: dict[int, tuple[str, Slot, int]] = {}
            numbers = 0
            for name in map(_weight, layers):
                slot = layout.slots[name]
                if slot.start not in taken and (numbers < 2 * bits or len(taken) < least):
                    outputs = 1 if layers[0] in norms else slot.shape[0]
                    taken[slot.start] = name, slot, outputs
                    numbers += slot.shape.numel() // outputs
            if taken:
                names, slots, counts = zip(*(taken[start] for start in sorted(taken)), strict=True)
                found.append(cls(names, slots, counts))
        for enough in (2 * bits, bits):
            for carrier in found:
                if carrier.size >= enough:
                    return carrier
        raise SettingError(
            f"{type(model).__name__} has no layers of one kind with a number for each of {bits} bits: "
            f"ask for {max((carrier.size for carrier in found), default=0)} bits at most"
        )

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(slot.shape.numel() // out for slot, out in zip(self.slots, self.outputs, strict=True))

    @property
    def places(self) -> Places:
        return Places(torch.cat([torch.arange(slot.start, slot.stop) for slot in self.slots]))

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        """w, from the tensors that are averaged."""
        return torch.cat([t.reshape(out, -1).mean(0) for t, out in zip(tensors, self.outputs, strict=True)])

    def spread(self, change: Tensor) -> Tensor:
        """Changes of w (… × numbers) as changes of all places (… × places)."""
        sizes = [slot.shape.numel() // out for slot, out in zip(self.slots, self.outputs, strict=True)]
        pieces = change.split(sizes, dim=-1)
        return torch.cat(
            [torch.cat([piece] * out, dim=-1) for piece, out in zip(pieces, self.outputs, strict=True)], dim=-1
        )


def _weight(layer: str) -> str:
    """The name of a layer's weights; the layer may be the whole model."""
    return f"{layer}.weight".removeprefix(".")


def far_apart(
    clients: int,
    bits: int,
    *,
    generator: torch.Generator,
    population: int = 10,
    generations: int = 50,
    mutation: float = 0.05,
    selection: float = 0.5,
) -> Tensor:
    """Bits ±1 (clients × bits) of which no two rows are near each other, by a genetic search.

    An individual is everybody's bits. In each generation the fittest live on, and the places of the others are taken by
    children: the first rows of one of the fittest, the other rows of another, and some bits flipped. The fitter is the
    one with the larger smallest Hamming distance or, that being equal, with fewer pairs so near.

    >>> rows = far_apart(4, 32, generator=torch.Generator().manual_seed(0))
    >>> rows.shape, int((rows[0] != rows[1]).sum()) > 12
    (torch.Size([4, 32]), True)
    """
    alive = torch.randint(2, (population, clients, bits), generator=generator) * 2.0 - 1
    kept = max(1, round(selection * population))
    for _ in range(generations):
        alive = alive[_fitness(alive).argsort(descending=True, stable=True)[:kept]]
        parents = torch.randint(kept, (2, population - kept), generator=generator)
        cut = torch.randint(clients + 1, (population - kept, 1, 1), generator=generator)
        children = torch.where(torch.arange(clients)[:, None] < cut, alive[parents[0]], alive[parents[1]])
        flipped = torch.rand(children.shape, generator=generator) < mutation
        alive = torch.cat([alive, torch.where(flipped, -children, children)])
    return alive[_fitness(alive).argmax()]


def _fitness(population: Tensor) -> Tensor:
    """How far apart the rows of each individual are."""
    bits = population.shape[-1]
    # How many more bits two rows have in common than not; a row with itself counts as an opposite.
    same = torch.eye(population.shape[-2], dtype=torch.bool)
    agreement = (population @ population.mT).masked_fill(same, -bits)
    most = agreement.amax((1, 2))
    crowd = (agreement == most[:, None, None]).double().mean((1, 2))
    # One less bit in common is worth more than any number of pairs that have so many: the crowd counts at most one.
    return -most.double() - crowd


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Everybody's bits and matrices: n × bits, and n × bits × numbers, which all lie in memory."""

    bits: Tensor
    keys: Tensor
    margin: float = 0.5

    @classmethod
    def make(cls, secret: bytes, clients: Sequence[str], bits: Tensor, numbers: int, margin: float) -> Self:
        shape = (bits.shape[1], numbers)
        return cls(bits, torch.stack([normal(secret, "fingerprint", c, shape=shape) for c in clients]), margin)

    def similarities(self, numbers: Tensor) -> Tensor:
        """How alike models (models × numbers) are to each client's: models × clients, at most one."""
        return self.read(numbers).clamp(max=self.margin).mean(-1) / self.margin

    def read(self, numbers: Tensor) -> Tensor:
        """Each client's bits as models (models × numbers) bear them, positive if right: models × clients × bits."""
        return torch.einsum("cbk,mk->mcb", self.keys, numbers) * self.bits

    def press(self, numbers: Tensor, *, rate: float, steps: int, similarity: float) -> Tensor:
        """What is to be added to w (numbers) for each client's model: n × numbers."""
        clients = len(self.bits)
        change = torch.zeros(clients, len(numbers))
        own, same = torch.arange(clients), torch.eye(clients, dtype=torch.bool)
        for _ in range(steps):
            said = self.read(numbers + change)
            alike = said.clamp(max=self.margin).mean(-1) / self.margin
            best = alike.masked_fill(same, -math.inf).amax(1)
            short = (alike.diagonal() < similarity) | (alike.diagonal() <= best)
            if not short.any():
                break
            lacking = self.margin - said[own, own]
            downhill = torch.einsum("cb,cbk->ck", self.bits * (lacking > 0), self.keys)
            loss, slope = lacking.clamp_min(0).sum(1), downhill.square().sum(1)
            length = torch.clamp(loss / slope.clamp_min(1e-12), max=rate) * short
            change += length[:, None] * downhill
        return change


class FedTracker(Taught):
    """FedTracker's server.

    >>> from tramark.keys.pictures import WafflePatterns
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10))
    >>> source, options = WafflePatterns((1, 12, 12)), {"bits": 64}
    >>> scene = Scene(("alice", "bob"), classes=10, source=source, secret=b"s" * 32, options=options)
    >>> server = FedTracker.make(net, scene)
    >>> report = server.collect(dict(server.dispatch()))
    >>> import copy
    >>> leaked = copy.deepcopy(net)
    >>> keys = leaked.load_state_dict(server.dispatch()["bob"])
    >>> server.verify(leaked).accused, server.verify(net).accused
    (('bob',), ())

    The models of the first round bear neither yet. Where clients' training still moves the model far, in the first
    rounds, it undoes the watermark but not the fingerprint: such a model is not claimed, and nobody is accused.

    Parameters
    ----------
    model, scene : as for all.
    projection : the sign with which gradients of the watermark are projected, or "off".
    rate, goal, passes, batch_size, clip : of the watermark's training.
    least : passes of it that are made in any case. With two classes the goal is soon reached, but by a hair, which half
        of the fingerprints undo; ten passes at a rate of 5e-3 hold.
    margin, ridge : γ and ε of the projection.
    bits : the length of a fingerprint.
    fingerprint_rate, steps, similarity, fingerprint_margin : of the fingerprint's.
    triggers, threshold, false_claim : of the watermark's `ClassQuestions`.
    """

    declared: ClassVar[Declared] = Declared("white-box")

    def __init__(
        self,
        model: nn.Module,
        scene: Scene,
        *,
        projection: Projection = "published",
        rate: float = 5e-4,
        goal: float = 0.98,
        least: int = 0,
        passes: int = 100,
        batch_size: int = 16,
        clip: float = 1.0,
        margin: float = 0.5,
        ridge: float = 1e-3,
        bits: int = 128,
        fingerprint_rate: float = 5e-3,
        steps: int = 6,
        similarity: float = 0.85,
        fingerprint_margin: float = 0.5,
        **questions: Any,
    ) -> None:
        if projection not in get_args(Projection):
            raise SettingError(f"no projection {projection!r}: there are {', '.join(get_args(Projection))}")
        if not (0 < similarity < 1 and bits > 0 and fingerprint_rate > 0 and fingerprint_margin > 0):
            raise SettingError(
                f"similarity {similarity} must lie between 0 and 1, and bits {bits}, fingerprint_rate "
                f"{fingerprint_rate} and fingerprint_margin {fingerprint_margin} must be positive"
            )
        self.projection, self.margin, self.ridge = projection, margin, ridge
        self.rehearsal = Rehearsal(rate, batch_size=batch_size, clip=clip, goal=goal, least=least, passes=passes)
        self.fingerprint_rate, self.steps, self.similarity = fingerprint_rate, steps, similarity
        super().__init__(model, scene, **questions)
        self.carrier = Carrier.of(self.model, self.fleet.layout, bits)
        self.memory = torch.zeros_like(self.fleet.base)
        self.fingerprints = Fingerprints.make(
            scene.secret,
            self.fleet.clients,
            far_apart(len(self.fleet.clients), bits, generator=self.questions.generator("bits")),
            self.carrier.size,
            fingerprint_margin,
        )

    @property
    def marked(self) -> bool:
        return self.fleet.region is not None

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        """Trace a module by its fingerprint, if its answers show that it is the federation's."""
        alike = self.fingerprints.similarities(self._numbers(suspect)[None])[0]
        scores = dict(zip(self.fleet.clients, alike.tolist(), strict=True))
        said = self.questions.ask(suspect)
        owned = self.questions.claim(said)
        return Finding(
            accused=(max(scores, key=lambda client: scores[client]),) if owned else (),
            scores=scores,
            queries=len(said),
            owned=owned,
        )

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """The share of the client's bits that the suspect bears; half of them are nobody's."""
        said = self.fingerprints.read(self._numbers(suspect)[None])[0, self.fleet.clients.index(client)]
        return float((said > 0).double().mean())

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "tracker": {"memory": self.memory.clone(), "bits": self.fingerprints.bits.clone()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory = state["tracker"]["memory"].clone()
        self.fingerprints = replace(self.fingerprints, bits=state["tracker"]["bits"].clone())

    def _finish(self, aggregation: Aggregation) -> None:
        before = self.fleet.base.clone()
        super()._finish(aggregation)
        self._average(aggregation.taken)
        self.memory += self.fleet.base - before

    def _mark(self) -> None:
        """Watermark the average, and make everyone's fingerprint from there."""
        self._teach(self.rehearsal, None if self.projection == "off" else self._turn)
        self._fingerprint()

    def _average(self, taken: Mapping[str, float]) -> None:
        """Make the base the average of returned models inside the region too, where the fleet keeps them apart."""
        if self.fleet.region is None or not taken:
            return
        rows = [self.fleet.clients.index(client) for client in taken]
        shares = torch.tensor(list(taken.values()), dtype=torch.float64) / sum(taken.values())
        self.fleet.region.put(self.fleet.base, shares @ self.fleet.marks[rows].double())

    def _turn(self, model: nn.Module) -> None:
        """Project the model's gradients against the memory."""
        parameters, sign = dict(model.named_parameters()), 1 if self.projection == "published" else -1
        for name, slot in self.fleet.layout.tensors.items():
            weight = parameters[name]
            if weight.grad is not None:
                memory = sign * slot.of(self.memory).to(weight)
                weight.grad = project(weight.grad, memory, margin=self.margin, ridge=self.ridge)

    def _fingerprint(self) -> None:
        base, places = self.fleet.base, self.carrier.places
        change = self.fingerprints.press(
            self.carrier.read([slot.of(base) for slot in self.carrier.slots]).float(),
            rate=self.fingerprint_rate,
            steps=self.steps,
            similarity=self.similarity,
        )
        self.fleet.settle(places, places.take(base) + self.carrier.spread(change).to(base.dtype))

    def _numbers(self, suspect: nn.Module | Suspect) -> Tensor:
        if not isinstance(suspect, nn.Module):
            raise SuspectError(
                "fingerprints are read from weights: a module is wanted, not something that only answers"
            )
        parameters = dict(suspect.named_parameters())
        tensors = []
        for name, slot in zip(self.carrier.names, self.carrier.slots, strict=True):
            if name not in parameters or parameters[name].shape != slot.shape:
                raise SuspectError(
                    f"the suspect has no weights {name} of shape {tuple(slot.shape)}: it is of another architecture, "
                    "and its fingerprint cannot be read"
                )
            tensors.append(parameters[name].detach().cpu().float())
        return self.carrier.read(tensors)
