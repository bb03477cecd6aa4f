"""A model's weights as one flat vector of d numbers, and back.

Weights are a model's trainable floating-point parameters; one that has two names counts once. Everything else in
a state dict (batch-norm statistics, counters, frozen parameters) is a *buffer*: it is averaged like the weights,
but no mark ever lives there. Tensors that do not travel (`tramark.fleet.travels`) are neither.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from tramark.errors import SettingError

State = Mapping[str, Tensor]

PIECE = 2**18
"""Numbers that are worked on at a time: as many as fit into a processor's cache."""


@dataclass(frozen=True)
class Slot:
    """Where one tensor of weights lies in the flat vector."""

    start: int
    shape: torch.Size
    dtype: torch.dtype
    embedding: bool = False
    """Whether it is an embedding's: a linear layer of one-hot inputs, whose weights are stored as in × out."""

    @property
    def stop(self) -> int:
        return self.start + self.shape.numel()

    def of(self, flat: Tensor) -> Tensor:
        """This tensor as a view of a flat vector."""
        return flat[self.start : self.stop].view(self.shape)

    def matrix(self, tensor: Tensor) -> Tensor:
        """A layer's weights, or their update, as an out × in matrix (a view)."""
        return tensor.T if self.embedding else tensor.view(len(tensor), -1)

    @property
    def sides(self) -> tuple[int, int]:
        """The shape of that matrix: out, in."""
        first, others = self.shape[0], self.shape[1:].numel()
        return (others, first) if self.embedding else (first, others)


@dataclass(frozen=True)
class Layout:
    """Which tensor of a model's state dict lies where in the flat vector.

    >>> layout = Layout.of(nn.Linear(3, 2))
    >>> layout.size, list(layout.slots)
    (8, ['weight', 'bias'])
    """

    slots: dict[str, Slot]
    """Every name of every tensor of weights; names of one shared tensor have one slot."""
    buffers: dict[str, tuple[torch.Size, torch.dtype]]
    order: tuple[str, ...]
    size: int
    dtype: torch.dtype
    """The dtype in which the server keeps weights: float32, or float64 if the model has such."""

    @classmethod
    def of(cls, model: nn.Module, travels: Collection[str] | None = None) -> Self:
        """A model's layout, or that of the tensors that travel."""
        names: dict[int, Slot] = {}
        slots: dict[str, Slot] = {}
        size = 0
        parameters = dict(model.named_parameters(remove_duplicate=False))
        state = {name: t for name, t in model.state_dict().items() if travels is None or name in travels}
        embeddings = {f"{name}.weight" for name in embedding_layers(model)}
        for name, parameter in parameters.items():
            if name in state and parameter.requires_grad and parameter.is_floating_point():
                if id(parameter) not in names:
                    names[id(parameter)] = Slot(size, parameter.shape, parameter.dtype, name in embeddings)
                    size += parameter.numel()
                slots[name] = names[id(parameter)]
        if not slots:
            which = "has no trainable weights" if travels is None else "sends no trainable weights to its clients"
            raise SettingError(f"{type(model).__name__} {which}: there is nothing to mark")
        odd = [name for name, tensor in state.items() if not isinstance(tensor, Tensor)]
        if odd:
            raise SettingError(f"the state dict holds more than tensors, which cannot be averaged: {', '.join(odd)}")
        buffers = {name: (t.shape, t.dtype) for name, t in state.items() if name not in slots}
        wide = any(slot.dtype == torch.float64 for slot in slots.values())
        return cls(slots, buffers, tuple(state), size, torch.float64 if wide else torch.float32)

    @property
    def tensors(self) -> dict[str, Slot]:
        """Each tensor of weights once, under its first name."""
        seen: dict[int, str] = {}
        for name, slot in self.slots.items():
            seen.setdefault(slot.start, name)
        return {name: self.slots[name] for name in seen.values()}

    def flatten(self, state: State) -> Tensor:
        """The weights of a state dict as a flat vector in the server's memory."""
        flat = torch.empty(self.size, dtype=self.dtype)
        for name, slot in self.tensors.items():
            slot.of(flat).copy_(state[name])
        return flat

    def state(self, flat: Tensor, buffers: State, own: State | None = None) -> dict[str, Tensor]:
        """A state dict of copies, in the model's own order and dtypes; tensors in `own` are taken from there."""
        done: dict[int, Tensor] = {}
        out: dict[str, Tensor] = {}
        for name in self.order:
            if name not in self.slots:
                out[name] = buffers[name].clone()
                continue
            slot = self.slots[name]
            if slot.start not in done:
                given = own.get(name) if own else None
                done[slot.start] = slot.of(flat).to(slot.dtype, copy=True) if given is None else given.to(slot.dtype)
            out[name] = done[slot.start]
        return out

    def problem(self, state: State) -> str | None:
        """What is wrong with a state dict that claims to be of this layout, or None.

        Missing tensors are named only if the others fit.
        """
        if extra := [name for name in state if name not in self.slots and name not in self.buffers]:
            return f"unexpected {some_names(extra)}"
        for name in (name for name in self.order if name in state):
            shape = self.slots[name].shape if name in self.slots else self.buffers[name][0]
            if state[name].shape != shape:
                return f"{name} has shape {tuple(state[name].shape)} instead of {tuple(shape)}"
            if not finite(state[name]):
                return f"{name} holds NaN or infinite values"
        if missing := self.missing(state):
            return f"missing {some_names(missing)}"
        return None

    def odd_dtype(self, state: State) -> str | None:
        """Which tensor of a state dict of this layout has another dtype than the model's, in words; None if none has.

        A value that is finite in one dtype may be infinite in another, and half of a complex number is another number.
        """
        for name in self.order:
            dtype = self.slots[name].dtype if name in self.slots else self.buffers[name][1]
            if name in state and state[name].dtype != dtype:
                return f"{name} is {_word(state[name].dtype)} instead of {_word(dtype)}"
        return None

    def missing(self, state: State) -> list[str]:
        """The names of the tensors that a state dict lacks."""
        return [name for name in self.order if name not in state]

    def without(self, names: Collection[str]) -> "Layout":
        """The layout without some buffers."""
        buffers = {name: buffer for name, buffer in self.buffers.items() if name not in names}
        return replace(self, buffers=buffers, order=tuple(name for name in self.order if name not in names))


def embedding_layers(model: nn.Module) -> list[str]:
    """Names of the embeddings that are linear layers of one-hot inputs, the largest vocabulary first.

    Not those that change their own weights or scale gradients by how often a token occurs, nor those that share their
    weights with another module, as a language model's output layer does.
    """
    uses = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    found = {
        name: module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and module.weight.requires_grad
        and uses[id(module.weight)] == 1
    }
    return sorted(found, key=lambda name: -found[name])


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def finite(tensor: Tensor) -> bool:
    """Whether all values are finite. Their sum nearly always tells, and takes a fraction of the time."""
    if not tensor.is_floating_point():
        return not tensor.is_complex() or bool(torch.isfinite(tensor).all())
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return bool(torch.isfinite(tensor.sum(dtype=wide)) or torch.isfinite(tensor).all())


def pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """A tensor in pieces that fit into a processor's cache (views, if it is contiguous)."""
    some: tuple[Tensor, ...] = tensor.detach().reshape(-1).split(PIECE)
    return some


def norm(tensors: Iterable[Tensor]) -> float:
    """The norm of all of them together, in double precision."""
    return math.hypot(*(float(torch.linalg.vector_norm(one, dtype=torch.float64)) for one in tensors))


def some_names(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def extend_head(model: nn.Module, classes: int) -> nn.Module:
    """The model with its last linear layer enlarged to `classes` outputs, in place: virtual classes for label answers.

    The old outputs stay as they are; the new ones start out unlikely and untrained. Do it before training begins.

    >>> extend_head(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), 5)[1]
    Linear(in_features=8, out_features=5, bias=True)
    """
    name, head = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1]
    if classes <= head.out_features:
        raise SettingError(f"the model has {head.out_features} outputs already: {classes} would not extend it")
    wider = nn.Linear(head.in_features, classes, bias=head.bias is not None).to(head.weight)
    with torch.no_grad():
        wider.weight[: head.out_features] = head.weight
        if head.bias is not None:
            wider.bias[: head.out_features] = head.bias
            wider.bias[head.out_features :] = head.bias.min()
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, wider)
    return model
