"""What a strategy remembers from round to round, saved with the server's state."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from tramark.fleet.aggregation import Aggregation
from tramark.server import TraMark


class RememberingServer(TraMark):
    """A server whose saved state includes what the inner strategy remembers."""

    def __init__(self, strategy: Strategy, at_first: Mapping[str, Tensor], *args: Any, **options: Any) -> None:
        self._strategy, self._at_first = strategy, at_first
        self._held: list[tuple[Strategy, dict[str, Any]]] = []
        super().__init__(*args, **options)

    def begin(self, *, discards: bool = False) -> Aggregation:
        self._held = [(one, dict(vars(one))) for one in _nested(self._strategy)]
        return super().begin(discards=discards)

    def _undone(self) -> None:
        # What the strategy remembers of a round that was undone would spoil the next.
        for one, attributes in self._held:
            vars(one).update(attributes)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"strategy": memory_of(self._strategy, unlike=self._at_first)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        remember(self._strategy, state.get("strategy", {}))


def _nested(strategy: Strategy) -> Iterator[Strategy]:
    """A strategy, and those that it holds."""
    yield strategy
    for value in vars(strategy).values():
        if isinstance(value, Strategy):
            yield from _nested(value)


def memory_of(strategy: Strategy, *, unlike: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """A strategy's arrays, and its numbers that differ from those in `unlike`."""
    found: dict[str, Tensor] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            found |= {f"{name}.{rest}": tensor for rest, tensor in memory_of(value).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{name}="] = torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, ArrayRecord):
            found |= _numbered(f"{name}:record", {key: array.numpy() for key, array in value.items()})
        elif isinstance(value, dict) and value and all(isinstance(item, np.ndarray) for item in value.values()):
            found |= _numbered(f"{name}:dict", value)
        elif isinstance(value, list) and value and all(isinstance(item, np.ndarray) for item in value):
            found |= _numbered(f"{name}:list", {str(i): item for i, item in enumerate(value)})
    unchanged = {n for n, t in (unlike or {}).items() if n.endswith("=") and torch.equal(t, found.get(n, t))}
    return {name: tensor for name, tensor in found.items() if name not in unchanged}


def _numbered(name: str, arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays as tensors under names that keep their order."""
    items = enumerate(arrays.items())
    return {f"{name}/{i:06d}/{key}": torch.from_numpy(np.array(array)) for i, (key, array) in items}


def remember(strategy: Strategy, memory: Mapping[str, Tensor]) -> None:
    """Give a strategy the memory that `memory_of` found."""
    parts: dict[tuple[str, str], dict[str, Tensor]] = {}
    inner: dict[str, dict[str, Tensor]] = {}
    for name, tensor in sorted(memory.items()):
        head, dot, rest = name.partition(".")
        if dot and isinstance(vars(strategy).get(head), Strategy):
            inner.setdefault(head, {})[rest] = tensor
        elif name.endswith("="):
            value = float(tensor)
            setattr(strategy, name[:-1], int(value) if isinstance(getattr(strategy, name[:-1]), int) else value)
        else:
            attribute, _, rest = name.partition(":")
            kind, _, key = rest.split("/", 2)
            parts.setdefault((attribute, kind), {})[key] = tensor
    for head, saved in inner.items():
        remember(vars(strategy)[head], saved)
    for (attribute, kind), tensors in parts.items():
        arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
        if kind == "record":
            setattr(strategy, attribute, ArrayRecord({key: Array(array) for key, array in arrays.items()}))
        elif kind == "dict":
            setattr(strategy, attribute, arrays)
        else:
            setattr(strategy, attribute, list(arrays.values()))
