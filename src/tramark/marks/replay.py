"""Remember a few clients' last updates, to see what they would do to a mark before it is sent to anybody."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import State
from tramark.fleet.scratch import loaded
from tramark.fleet.usual import lower_median

UPDATES = 2
"""Updates that are replayed."""

MORE = 1
"""Updates that are remembered beyond that, so that one among them that is far larger can be left out."""

FAR = 3.0
"""An update this many times larger than the median is not replayed: one client must not decide what marks need."""


class Replay:
    """The first few typical updates of a round: differences between what came back and what was sent.

    With `local`, also the weights that the first of the fleet's clients among them returned.
    """

    def __init__(self, fleet: Fleet, updates: Iterable[dict[str, Tensor]] = (), *, local: bool = False) -> None:
        self._fleet = fleet
        self._held = list(updates)
        self.local: Tensor | None = None
        self._row = len(fleet.clients) if local else 0

    @property
    def updates(self) -> list[dict[str, Tensor]]:
        """The first of them that are not far larger than the others."""
        sizes = [self._size(update, self._fleet.layout.tensors) for update in self._held]
        usual = lower_median(sizes) if sizes else 0.0
        return [update for update, size in zip(self._held, sizes, strict=True) if size <= FAR * usual][:UPDATES]

    def watch(self, client: str, returned: State) -> None:
        """Remember one client's update, unless there are enough."""
        if (row := self._fleet._row(client)) < self._row:
            self._row, self.local = row, self._fleet.layout.flatten(returned)
        if len(self._held) == UPDATES + MORE:
            return
        # A tensor that has two names is taken once, or it would be changed twice. Counters do not matter.
        # Half of the memory is saved, and no more than the third digit lost.
        weights = {
            name: self._fleet.update(client, name, returned[name]).to(torch.bfloat16)
            for name in self._fleet.layout.tensors
        }
        buffers = {
            name: returned[name].to(old) - old
            for name, old in self._fleet.buffers.items()
            if name in returned and old.is_floating_point()
        }
        self._held.append(weights | buffers)

    def size(self, layers: Collection[str]) -> float:
        """The norm of an update of all weights but those of some layers, in the mean."""
        names = [n for n in self._fleet.layout.tensors if n.removesuffix(".weight") not in layers]
        sizes = [self._size(update, names) for update in self.updates]
        return sum(sizes) / max(len(sizes), 1)

    @staticmethod
    def _size(update: Mapping[str, Tensor], names: Iterable[str]) -> float:
        return math.sqrt(sum(float(torch.linalg.vector_norm(update[n], dtype=torch.float64)) ** 2 for n in names))


@contextmanager
def replayed(model: nn.Module, fleet: Fleet, update: Mapping[str, Tensor]) -> Iterator[nn.Module]:
    """A scratch model with the fleet's base and one remembered update on top, in evaluation mode."""
    with loaded(model, fleet), torch.no_grad():
        own = model.state_dict()
        for name, change in update.items():
            own[name].add_(change.to(own[name].device, own[name].dtype))
        yield model
