"""Marks by gradient steps in places: the paper's way.

Each client's model is trained on its key, and only the places of the region move: θ_i ← θ_i − η_w · g ⊙ M_w. Everything
runs in evaluation mode, so that neither dropout nor the questions' batch statistics reach the model.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.region import Places, smallest_weights
from tramark.fleet.scratch import device_of, load_weights, loaded
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
    rate : the learning rate η_w.
    passes : how often the key's training questions are gone through (the iterations τ_w, if batches are full).
    batch_size : questions a step; None takes all at once.
    summed : never reset the gradient, so that each step follows the sum of all gradients so far.
    """

    ratio: float = 0.01
    per_tensor: bool = False
    rate: float = 1e-4
    passes: int = 5
    batch_size: int | None = None
    summed: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise SettingError(f"the region's ratio k must lie between 0 and 1, not {self.ratio}")

    def layers(self, model: nn.Module, odd: Collection[str] = ()) -> tuple[str, ...]:
        return ()

    def begin(
        self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, updates: Sequence[Mapping[str, Tensor]]
    ) -> tuple[Keyring, Plan]:
        region = smallest_weights(fleet.base, fleet.layout, self.ratio, per_tensor=self.per_tensor)
        fleet.settle(region, region.take(fleet.base).repeat(len(fleet.clients), 1))
        # Nothing measures whether the region bears more than the clients' questions.
        return keyring.choose(keyring.chosen, common=()) if keyring.common else keyring, Plan()

    def steer(self, plan: Plan, made: Made, survived: Survived) -> Plan:
        return plan

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift, plan: Plan) -> None:
        device = device_of(model)
        assert isinstance(fleet.region, Places)
        tensors = _MarkedTensor.all(model, fleet, fleet.region)
        with loaded(model, fleet):
            for row, client in enumerate(fleet.clients):
                key = keyring.key(client)
                answers = torch.tensor(key.answers, device=device).repeat_interleave(keyring.train_variants)
                size = self.batch_size or len(answers)
                if row == 0 or keyring.assignment == "label":
                    inputs = channels_last(keyring.inputs(key, "train").flatten(0, 1).to(device)).split(size)
                load_weights(model, fleet, fleet.weights(client))
                batches = list(zip(inputs, answers.split(size), strict=True))
                fleet.marks[row] = self._train(model, tensors, batches, fleet.marks[row].to(device)).cpu()

    def _train(
        self,
        model: nn.Module,
        tensors: "Sequence[_MarkedTensor]",
        batches: Sequence[tuple[Tensor, Tensor]],
        mark: Tensor,
    ) -> Tensor:
        total = torch.zeros_like(mark)
        for _ in range(self.passes):
            for inputs, answers in batches:
                for tensor in tensors:
                    tensor.put(mark)
                loss = F.cross_entropy(model(inputs), answers)
                dense = torch.autograd.grad(loss, [t.weight for t in tensors], materialize_grads=True)
                gradient = torch.cat([g.flatten()[t.places] for g, t in zip(dense, tensors, strict=True)]).to(mark)
                total = total + gradient if self.summed else gradient
                mark = mark - self.rate * total
        return mark


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
