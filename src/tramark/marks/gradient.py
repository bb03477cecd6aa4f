"""Marks by gradient steps in places: the paper's way.

Each client's model is trained on its key, and only the places of the region move: θ_i ← θ_i − η_w · g ⊙ M_w. As in the
paper's Algorithm 2, the region is chosen first, the next round's masked aggregation leaves each client's own weights in
it (θ_i + M_w ⊙ Δ_i), and the first steps are made from there.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from tramark.errors import SettingError
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.region import Places, smallest_weights
from tramark.fleet.scratch import device_of, load_weights, loaded, seeded
from tramark.keys import streams
from tramark.keys.keyring import Keyring
from tramark.marks.injection import Made, Plan
from tramark.marks.split import channels_last
from tramark.marks.survival import Survived


@dataclass(frozen=True)
class GradientSteps:
    """Plain gradient steps on each client's key, in a region of the smallest weights.

    Parameters
    ----------
    ratio : the region's share k of all weights.
    per_tensor : choose the region tensor by tensor instead of over the whole model.
    local : choose the region one round before the warm-up ends, and from the model that the first client returned,
        instead of at its end from the base.
    rate : the learning rate η_w.
    passes : how often the key's training questions are gone through (the iterations τ_w, if batches are full).
    batch_size : questions a step; None takes all at once.
    shuffled : go through the questions in a new random order in each pass.
    summed : never reset the gradient, so that each step follows the sum of all gradients so far.
    dropout : train with dropout. Otherwise everything runs in evaluation mode. Batch norm always does, since all
        clients' models have the same statistics.
    """

    ratio: float = 0.01
    per_tensor: bool = False
    local: bool = False
    rate: float = 1e-4
    passes: int = 5
    batch_size: int | None = None
    shuffled: bool = False
    summed: bool = False
    dropout: bool = False
    waits: ClassVar[bool] = True
    on_demand: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise SettingError(f"the region's ratio k must lie between 0 and 1, not {self.ratio}")
        if not self.rate > 0 or self.passes < 1:
            raise SettingError(f"rate must be positive, and passes at least 1, not {self.rate} and {self.passes}")

    @property
    def early(self) -> bool:
        return self.local

    def layers(self, model: nn.Module, odd: Collection[str] = ()) -> tuple[str, ...]:
        return ()

    def begin(
        self,
        model: nn.Module,
        fleet: Fleet,
        keyring: Keyring,
        drift: Drift,
        updates: Sequence[Mapping[str, Tensor]],
        local: Tensor | None = None,
    ) -> tuple[Keyring, Plan]:
        weights = local if self.local and local is not None else fleet.base
        region = smallest_weights(weights, fleet.layout, self.ratio, per_tensor=self.per_tensor)
        fleet.settle(region, region.take(fleet.base).repeat(len(fleet.clients), 1))
        # Nothing measures whether the region bears more than the clients' questions.
        return keyring.choose(keyring.chosen, common=()) if keyring.common else keyring, Plan()

    def steer(self, plan: Plan, made: Made, survived: Survived) -> Plan:
        return plan

    def make(
        self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, plan: Plan, clients: Sequence[str]
    ) -> NoReturn:
        raise NotImplementedError("these marks are state: everybody's are kept")

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, plan: Plan) -> None:
        device = device_of(model)
        assert isinstance(fleet.region, Places)
        tensors = _MarkedTensor.all(model, fleet, fleet.region)
        with loaded(model, fleet):
            for module in model.modules():
                module.training = self.dropout and not isinstance(module, _NormBase)
            for row, client in enumerate(fleet.clients):
                key = keyring.key(client)
                answers = torch.tensor(key.answers, device=device).repeat_interleave(keyring.train_variants)
                if row == 0 or keyring.assignment == "label":
                    inputs = channels_last(keyring.inputs(key, "train").flatten(0, 1).to(device))
                load_weights(model, fleet, fleet.weights(client))
                random = draws(keyring, client, plan.times)
                with seeded(random, device) if self.dropout else nullcontext():
                    mark = self._train(model, tensors, inputs, answers, fleet.marks[row].to(device), random)
                fleet.marks[row] = mark.cpu()

    def _train(
        self,
        model: nn.Module,
        tensors: "Sequence[_MarkedTensor]",
        inputs: Tensor,
        answers: Tensor,
        mark: Tensor,
        random: torch.Generator,
    ) -> Tensor:
        total = torch.zeros_like(mark)
        for batch in self._batches(len(answers), random):
            for tensor in tensors:
                tensor.put(mark)
            loss = F.cross_entropy(model(inputs[batch]), answers[batch])
            dense = torch.autograd.grad(loss, [t.weight for t in tensors], materialize_grads=True)
            gradient = torch.cat([g.flatten()[t.places] for g, t in zip(dense, tensors, strict=True)]).to(mark)
            total = total + gradient if self.summed else gradient
            mark = mark - self.rate * total
        return mark

    def _batches(self, count: int, random: torch.Generator) -> Iterator[Tensor | slice]:
        """Which questions each step sees."""
        size = self.batch_size or count
        for _ in range(self.passes):
            if self.shuffled:
                yield from torch.randperm(count, generator=random).split(size)
            else:
                yield from (slice(first, first + size) for first in range(0, count, size))


def draws(keyring: Keyring, client: str, times: int) -> torch.Generator:
    """What decides the order of questions and the dropout when a client's mark is made after `times` earlier ones."""
    seed = streams.integers(keyring.secret, "gradient steps", client, times, count=1, below=2**62)
    return torch.Generator().manual_seed(int(seed))


@dataclass(frozen=True, eq=False)
class _MarkedTensor:
    """One tensor that has places in the region."""

    weight: nn.Parameter
    inside: slice
    """Which part of a mark lies in it."""
    places: Tensor

    @classmethod
    def all(cls, model: nn.Module, fleet: Fleet, region: Places) -> "list[_MarkedTensor]":
        """Those of a model, in the region's order."""
        found = []
        marked = region.tensors(fleet.layout)
        for name in (name for name in fleet.layout.tensors if name in marked):
            inside, places = region.inside(fleet.layout.slots[name])
            found.append(cls(model.get_parameter(name), inside, places.to(device_of(model))))
        return found

    def put(self, mark: Tensor) -> None:
        self.weight.data.view(-1)[self.places] = mark[self.inside].to(self.weight.dtype)
