"""FedIPR: every client puts a mark of its own into the model that all of them get.

White-box: client i's 40 bits b_i in γ, the scales of the norm layers (or mean kernels, see `public_carrier`), by adding
α Σ relu(−b_i·(γM_i)) to its loss, with α = 0.2 and M_i ~ N(0, 1). Black-box: ten triggers of its own, samples moved by
projected gradient descent (PGD) towards a label that is not theirs, two of them appended to each batch. The server
averages, and knows nothing of it.

All marks are in the one model that everybody has: any client can prove by its bits that a suspect comes from the
federation, and none can tell who leaked it. All n·40 bits fit only if γ has more numbers than that; beyond, they are in
each other's way. With `source="original"`, as in the public code, γ is that of the last three layers, each of which has
a matrix of its own and its share of the bits, in proportion to its numbers; by default one matrix reads all layers. The
source reads triggers that were made beforehand; here each client makes its own at the end of its first round, of the
model that it has then, and trains on them from its next round on.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.fleet.scratch import device_of, evaluating
from tramark.keys import streams
from tramark.lab.methods.base import Declared, Finding, Origin, Scene, check_origin
from tramark.lab.methods.bits import BitKey, Tensors, appended, needed, public_carrier, read, read_suspect
from tramark.lab.methods.watermarked import Watermarked
from tramark.lab.simulation.client import Practice
from tramark.suspects.base import Suspect


class FedIPR(Watermarked):
    """FedAvg among clients who each mark the model.

    >>> from tramark.keys.pictures import Patterns
    >>> from tramark.lab import data
    >>> from tramark.lab import models
    >>> from tramark.lab.simulation.partition import iid
    >>> from tramark.lab.simulation.simulator import Simulation
    >>> digits = data.load("digits")
    >>> model = models.build("small-cnn", input_shape=digits.input_shape, classes=10, seed=0)
    >>> source = Patterns((1, 8, 8), mean=digits.mean, std=digits.std)
    >>> method = FedIPR.make(model, Scene(("alice", "bob"), classes=10, source=source, secret=b"s" * 32))
    >>> parts = iid(digits.train_labels, 2, generator=torch.Generator().manual_seed(0))
    >>> simulation = Simulation(method, digits, parts)
    >>> simulation.step()["owned"], method.verify(model).owned
    (1.0, False)

    Parameters
    ----------
    model, scene : as for all. In a real federation each client has a secret of its own.
    source : whose way to read the bits it is. Table 1 of the paper has no FedIPR.
    bits, alpha : how many bits a client has, and how hard they are pulled.
    triggers, per_batch : how many triggers a client has, and how many of them join each batch.
    epsilon, steps : how far a trigger may be from its sample (in shares of the pixels' range, or in the units of a
        table) and in how many steps of 2.5 ε / steps it is made. Text has no triggers, since its ids have no gradient.
    false_claim : the bound on the probability that anybody claims a model that has nothing to do with it.
    """

    declared: ClassVar[Declared] = Declared("white-box", names_clients=False)

    def __init__(
        self,
        model: nn.Module,
        scene: Scene,
        *,
        source: Origin = "ours",
        bits: int = 40,
        alpha: float = 0.2,
        triggers: int = 10,
        per_batch: int = 2,
        epsilon: float = 0.1,
        steps: int = 10,
        false_claim: float = 1e-6,
    ) -> None:
        super().__init__(model, scene)
        if triggers < 0 or per_batch < 1 or steps < 1 or epsilon < 0 or alpha < 0:
            raise SettingError(
                f"triggers {triggers}, per_batch {per_batch}, steps {steps}, epsilon {epsilon}, alpha {alpha}: "
                "per_batch and steps must be at least 1, and none negative"
            )
        check_origin(source, ("ours", "original"))
        self.carrier = public_carrier(model, last=0 if source == "ours" else 3)
        own = {client: self._key(client, bits, source) for client in self.fleet.clients}
        bits = len(next(iter(own.values())).bits)
        self.needed = needed(bits, len(self.fleet.clients), false_claim)
        self.bits, self.alpha = bits, alpha
        self.trigger_count, self.per_batch, self.epsilon, self.steps = triggers, per_batch, epsilon, steps
        self.triggers: dict[str, Tensor] = {}
        """Each client's triggers, raw, once it has made them."""
        self.targets: dict[str, Tensor] = {}
        self._made: dict[str, int] = {}
        self._keys = own

    def _key(self, client: str, bits: int, source: Origin) -> BitKey:
        secret = self.scene.secret
        if source == "ours":
            return BitKey.draw(secret, "fedipr", client, size=self.carrier.size, bits=bits)
        sizes = [Tensors.of(self.model, [name], averaged=self.carrier.averaged).size for name in self.carrier.names]
        return BitKey.draw_apart(secret, "fedipr", client, sizes=sizes, bits=bits)

    def train_client(self, client: str, model: nn.Module, practice: Practice) -> None:
        key = self._keys[client].to(device_of(model))

        def bits(model: nn.Module) -> Tensor:
            return self.alpha * key.hinge(read(model, self.carrier))

        # A client's triggers serve from the round after they were made: then it does not matter whether a round was
        # tried before and not collected.
        if self._made.get(client, self.round) == self.round:
            practice(model, extra=bits)
            self._make_triggers(client, model, practice)
        elif not len(self.triggers[client]):
            practice(model, extra=bits)
        else:
            inputs = practice.prepare(self.triggers[client])
            with appended(
                model, inputs, self.targets[client], lambda _: self.per_batch, practice.generator
            ) as triggers:
                practice(model, extra=lambda model: bits(model) + triggers(model))

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        """Whether anybody's bits are there: enough of one client's that, over all n clients, chance would do it with
        probability `false_claim` at most (binomial, Bonferroni). Scores are bit accuracies."""
        values = read_suspect(suspect, self.carrier)
        right = {client: key.matches(values) for client, key in self._keys.items()}
        return Finding(
            accused=(),
            scores={client: count / self.bits for client, count in right.items()},
            owned=max(right.values()) >= self.needed,
        )

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """The client's bit accuracy; a stranger's model has about one half of its bits."""
        return self._keys[client].matches(read_suspect(suspect, self.carrier)) / self.bits

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict() | {"made": dict(self._made)}
        return state | {"triggers": dict(self.triggers), "targets": dict(self.targets)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._made = dict(state["made"])
        self.triggers, self.targets = dict(state["triggers"]), dict(state["targets"])

    def _make_triggers(self, client: str, model: nn.Module, practice: Practice) -> None:
        raw, labels = practice.some(self.trigger_count)
        classes = self.scene.classes
        shift = streams.integers(self.scene.secret, "fedipr targets", client, count=len(raw), below=classes - 1)
        self._made[client] = self.round
        self.targets[client] = (labels + 1 + shift) % classes
        if raw.dtype == torch.uint8 or raw.is_floating_point():
            self.triggers[client] = self._descend(raw, self.targets[client], model, practice)
        else:
            self.triggers[client], self.targets[client] = raw[:0], labels[:0]

    def _descend(self, raw: Tensor, targets: Tensor, model: nn.Module, practice: Practice) -> Tensor:
        """PGD towards the targets, on raw inputs. Preparing images only moves and stretches each channel, so that the
        gradient's signs are the same before and after."""
        if not len(raw):
            return raw
        device = device_of(model)
        image = raw.dtype == torch.uint8
        reach = self.epsilon * (255 if image else 1)
        centre = raw.float()
        moved = centre + reach * (2 * torch.rand(raw.shape, generator=practice.generator) - 1)

        def settled(values: Tensor) -> Tensor:
            return values.clamp(0, 255).round().to(torch.uint8) if image else values.to(raw.dtype)

        with evaluating(model):
            for _ in range(self.steps):
                inputs = practice.prepare(settled(moved)).to(device, copy=True).requires_grad_()
                loss = F.cross_entropy(model(inputs), targets.to(device))
                (slope,) = torch.autograd.grad(loss, inputs)
                moved = moved - 2.5 * reach / self.steps * slope.sign().cpu()
                moved = torch.minimum(torch.maximum(moved, centre - reach), centre + reach)
        return settled(moved)
