"""Thieves who put their models together.

With the weights w_1 … w_c of c colluders: `Average` gives Σ a_i w_i, `MixTensors` takes each tensor from one of them
drawn at random, `MixWeights` each single weight, and `Extreme` takes the smallest, the largest or the median of every
weight. Batch-norm statistics are averaged in all of them, and counters are the first one's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.fleet.layout import Layout
from tramark.lab.attacks.base import Loot, copied, generator


@dataclass(frozen=True, eq=False)
class Pool:
    """Several models of one architecture as flat vectors: colluders × weights."""

    layout: Layout
    flats: Tensor
    buffers: dict[str, Tensor]
    """The mean of their batch-norm statistics and frozen weights, and the first one's counters."""
    model: nn.Module

    @classmethod
    def of(cls, models: Sequence[nn.Module], colluders: int) -> "Pool":
        if len(models) != colluders:
            raise SettingError(f"{len(models)} models for {colluders} colluders: there must be one each")
        layout = Layout.of(models[0])
        states = [model.state_dict() for model in models]
        for number, state in enumerate(states):
            if problem := layout.problem(state):
                raise SettingError(f"colluder {number}'s model is not like the first one's: {problem}")
        buffers = {
            name: torch.stack([state[name].cpu().double() for state in states]).mean(0).to(dtype)
            if dtype.is_floating_point
            else states[0][name].cpu()
            for name, (_, dtype) in layout.buffers.items()
        }
        return cls(layout, torch.stack([layout.flatten(state) for state in states]), buffers, models[0])

    def mean(self, weights: Sequence[float] | None = None) -> Tensor:
        """The (weighted) mean of all weights, in double precision: where all are alike, so is their mean."""
        shares = torch.tensor(weights or [1.0] * len(self.flats), dtype=torch.float64)
        total = sum(flat.double() * share for flat, share in zip(self.flats, shares / shares.sum(), strict=True))
        assert isinstance(total, Tensor)
        return total.to(self.flats.dtype)

    def made(self, flat: Tensor) -> nn.Module:
        """A model of these weights."""
        model = copied(self.model)
        model.load_state_dict(self.layout.state(flat, self.buffers))
        return model


def check_colluders(colluders: int) -> None:
    if colluders < 2:
        raise SettingError(f"{colluders} colluders: it takes at least two")


@dataclass(frozen=True)
class Average:
    """The mean of the models, weighted if told."""

    colluders: int = 2
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_colluders(self.colluders)
        if self.weights is not None and (
            len(self.weights) != self.colluders or min(self.weights) < 0 or not sum(self.weights) > 0
        ):
            raise SettingError(
                f"weights {self.weights}: give one for each of {self.colluders} colluders, and none below 0"
            )

    def collude(self, models: Sequence[nn.Module], loot: Loot) -> nn.Module:
        pool = Pool.of(models, self.colluders)
        return pool.made(pool.mean(self.weights))


@dataclass(frozen=True)
class MixTensors:
    """Each tensor is that of a colluder drawn at random."""

    colluders: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_colluders(self.colluders)

    def collude(self, models: Sequence[nn.Module], loot: Loot) -> nn.Module:
        pool, source = Pool.of(models, self.colluders), generator(self.seed)
        mixed = pool.flats[0].clone()
        for slot in pool.layout.tensors.values():
            who = int(torch.randint(self.colluders, (), generator=source))
            mixed[slot.start : slot.stop] = pool.flats[who, slot.start : slot.stop]
        return pool.made(mixed)


@dataclass(frozen=True)
class MixWeights:
    """Each weight is that of a colluder drawn at random."""

    colluders: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_colluders(self.colluders)

    def collude(self, models: Sequence[nn.Module], loot: Loot) -> nn.Module:
        pool = Pool.of(models, self.colluders)
        who = torch.randint(self.colluders, (1, pool.layout.size), generator=generator(self.seed))
        return pool.made(pool.flats.gather(0, who)[0])


@dataclass(frozen=True)
class Extreme:
    """The smallest, the largest or the median of every weight; the median of an even number is their middle."""

    colluders: int = 2
    kind: Literal["min", "max", "median"] = "median"

    def __post_init__(self) -> None:
        check_colluders(self.colluders)
        if self.kind not in ("min", "max", "median"):
            raise SettingError(f"unknown extreme {self.kind!r}: use min, max or median")

    def collude(self, models: Sequence[nn.Module], loot: Loot) -> nn.Module:
        pool = Pool.of(models, self.colluders)
        if self.kind != "median":
            low, high = pool.flats.aminmax(dim=0)
            return pool.made(low if self.kind == "min" else high)
        ranked, last = pool.flats.sort(dim=0).values, self.colluders - 1
        return pool.made((ranked[last // 2].double() / 2 + ranked[(last + 1) // 2].double() / 2).to(ranked.dtype))
