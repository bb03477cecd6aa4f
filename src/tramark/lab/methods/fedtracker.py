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

VR is the share of models whose own fingerprint is the arg-max, as in both papers; `vr_owned` is the share of those that
the watermark claims, too.

Two things differ from the source by default ("ours"). With its rate of 5e-4 the watermark takes many rounds to reach
98 %: here that rate is doubled after every ten passes that did not suffice, and steps are cut to norm one. And its
steps of 5e-3 for the fingerprint, which suit scales near one, overshoot with mean kernels: here none is longer than
Polyak's, loss over squared gradient, which would bring the loss to zero were it linear. `source="original"` does
neither. `source="table1"` is what the paper's Table 1 calls FedTracker: fingerprints alone, of 128 bits (4 with 100
classes), at a rate of 5e-4, in one linear layer of the paper's nets (`carrier`). That code's file with the fingerprints
was never published: a number for each of the layer's outputs is our reading of its shapes. Table 1 measured MA on the
first client's model alone; here it is the mean over all.

S. Shao et al.: FedTracker: Furnishing Ownership Verification and Traceability for Federated Learning Model. IEEE TDSC
2024. D. Lopez-Paz, M. Ranzato: Gradient Episodic Memory for Continual Learning. NeurIPS 2017.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from tramark.errors import SettingError, SuspectError
from tramark.fleet.aggregation import Aggregation
from tramark.lab.methods.base import Declared, Finding, Origin, Scene, check_origin, told
from tramark.lab.methods.fingerprints import Carrier, Fingerprints, far_apart
from tramark.lab.methods.taught import Rehearsal, Taught
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
    source : whose parameters these are, where they are not given.
    carrier : the layer whose outputs carry fingerprints, instead of those that are found as said above.
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
        source: Origin = "ours",
        carrier: str | None = None,
        projection: Projection = "published",
        rate: float = 5e-4,
        goal: float = 0.98,
        least: int = 0,
        passes: int = 100,
        batch_size: int = 16,
        clip: float | None = None,
        margin: float = 0.5,
        ridge: float = 1e-3,
        bits: int | None = None,
        fingerprint_rate: float | None = None,
        steps: int = 6,
        similarity: float = 0.85,
        fingerprint_margin: float = 0.5,
        **questions: Any,
    ) -> None:
        check_origin(source)
        table1, ours = source == "table1", source == "ours"
        clip = told(clip, 1.0 if ours else math.inf)
        bits = told(bits, 4 if table1 and scene.classes == 100 else 128)
        fingerprint_rate = told(fingerprint_rate, 5e-4 if table1 else 5e-3)
        if table1:
            carrier = carrier or _papers_layer(model)
        if projection not in get_args(Projection):
            raise SettingError(f"no projection {projection!r}: there are {', '.join(get_args(Projection))}")
        if not (0 < similarity < 1 and bits > 0 and fingerprint_rate > 0 and fingerprint_margin > 0):
            raise SettingError(
                f"similarity {similarity} must lie between 0 and 1, and bits {bits}, fingerprint_rate "
                f"{fingerprint_rate} and fingerprint_margin {fingerprint_margin} must be positive"
            )
        self.projection, self.margin, self.ridge = projection, margin, ridge
        self.watermarked, self.shortened = not table1, ours
        self.rehearsal = Rehearsal(
            rate,
            batch_size=batch_size,
            clip=clip,
            goal=goal,
            least=least,
            passes=passes,
            doubling=10 if ours else math.inf,
        )
        self.fingerprint_rate, self.steps, self.similarity = fingerprint_rate, steps, similarity
        super().__init__(model, scene, **questions)
        layout = self.fleet.layout
        self.carrier = Carrier.of_layer(layout, carrier) if carrier else Carrier.of(self.model, layout, bits)
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
        """Trace a module by its fingerprint, if its answers show that it is the federation's.

        Without a watermark there is nothing to show that, and somebody is always accused.
        """
        alike = self.fingerprints.similarities(self._numbers(suspect)[None])[0]
        scores = dict(zip(self.fleet.clients, alike.tolist(), strict=True))
        most = max(scores, key=lambda client: scores[client])
        if not self.watermarked:
            return Finding((most,), scores, owned=True)
        said = self.questions.ask(suspect)
        owned = self.questions.claim(said)
        return Finding((most,) if owned else (), scores, queries=len(said), owned=owned)

    def measure(self, samples: int | None = None) -> dict[str, Any]:
        """Also the arg-max of the fingerprints alone, which is the VR of both papers."""
        found = super().measure(samples)
        if not found:
            return found
        own = self.fleet.marks.split([slot.shape.numel() for slot in self.carrier.slots], dim=1)
        numbers = torch.stack([self.carrier.read(pieces) for pieces in zip(*own, strict=True)])
        largest = self.fingerprints.similarities(numbers.float()).argmax(1)
        right = (largest == torch.arange(len(largest))).double()
        return found | {"vr_owned": found["vr"], "vr": float(right.mean())}

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
        if self.watermarked:
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
            shortened=self.shortened,
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


def _papers_layer(model: nn.Module) -> str:
    """The layer that carries fingerprints in the paper's nets: of the ViT the head, of VGG-16 the second linear layer,
    of AlexNet the last, of the CNN the first."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    known = {"cnn": "fc1", "alexnet": "fc3", "vgg16": "fc2", "vit": "head"}
    kind = (
        "vit" if "head" in names
        else "vgg16" if any(name == "conv5_3" for name, _ in model.named_modules())
        else "alexnet" if "fc3" in names
        else "cnn"
    )  # fmt: skip
    if known[kind] not in names:
        raise SettingError("Table 1's FedTracker knows the paper's nets only: say carrier=… with the name of a layer")
    return known[kind]
