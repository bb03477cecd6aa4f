"""Remember a few clients' last updates, to see what they would do to a mark before it is sent to anybody."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import State, norm
from tramark.fleet.scratch import loaded
from tramark.fleet.usual import lower_median

UPDATES = 2
"""Updates that are replayed."""

MORE = 1
"""Updates that are looked at beyond that, so that one among them that is far larger can be left out."""

FAR = 3.0
"""An update this many times larger than the median is not replayed: one client must not decide what marks need."""


class Replay:
    """The first few typical updates of a round: differences between what came back and what was sent.

    With `local`, also the weights that the first of the fleet's clients among them returned.
    """

    def __init__(self, fleet: Fleet, updates: Iterable[dict[str, Tensor]] = (), *, local: bool = False) -> None:
        self._fleet = fleet
        self._held = list(updates)
        self._sizes = [norm(update[name] for name in fleet.layout.tensors) for update in self._held]
        self.local: Tensor | None = None
        self._row = len(fleet.clients) if local else 0

    @property
    def updates(self) -> list[dict[str, Tensor]]:
        """The first of them that are not far larger than the others."""
        return [update for update, size in zip(self._held, self._sizes, strict=False) if size <= self._limit]

    def watch(self, client: str, returned: State) -> None:
        """Remember one client's update, unless there are enough."""
        if (row := self._fleet._row(client)) < self._row:
            self._row, self.local = row, self._fleet.layout.flatten(returned)
        if len(self._sizes) == UPDATES + MORE:
            return
        names = self._fleet.layout.tensors
        self._sizes.append(norm(self._fleet.update(client, name, returned[name]) for name in names))
        if len(self._held) < UPDATES:
            self._held.append(self._update(client, returned))
            return
        # One more is looked at, and takes the place of one that is far larger: no more are ever held.
        far = [place for place, size in enumerate(self._sizes[:UPDATES]) if size > self._limit]
        if far and self._sizes[-1] <= self._limit:
            self._held[far[0]], self._sizes[far[0]] = self._update(client, returned), self._sizes[-1]

    @property
    def _limit(self) -> float:
        return FAR * lower_median(self._sizes) if self._sizes else 0.0

    def _update(self, client: str, returned: State) -> dict[str, Tensor]:
        """An update. Half of the memory is saved, and no more than the third digit of weights lost."""
        # A tensor that has two names is taken once, or it would be changed twice. Counters do not matter.
        weights = {
            name: self._fleet.update(client, name, returned[name]).to(torch.bfloat16)
            for name in self._fleet.layout.tensors
        }
        buffers = {
            name: returned[name].to(old) - old
            for name, old in self._fleet.buffers.items()
            if name in returned and old.is_floating_point()
        }
        return weights | buffers

    def size(self, layers: Collection[str]) -> float:
        """The norm of an update of all weights but those of some layers, in the mean."""
        names = [n for n in self._fleet.layout.tensors if n.removesuffix(".weight") not in layers]
        sizes = [norm(update[name] for name in names) for update in self.updates]
        return sum(sizes) / max(len(sizes), 1)


@contextmanager
def replayed(model: nn.Module, fleet: Fleet, update: Mapping[str, Tensor]) -> Iterator[nn.Module]:
    """A scratch model with the fleet's base and one remembered update on top, in evaluation mode."""
    with loaded(model, fleet), torch.no_grad():
        own = model.state_dict()
        for name, change in update.items():
            own[name].add_(change.to(own[name].device, own[name].dtype))
        yield model
