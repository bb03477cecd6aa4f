"""A device that is none: tensors that report another device than the CPU while they hold values on the CPU.

Within `elsewhere()`, whatever is put on `DEVICE` becomes such a tensor, and an operation that mixes it with tensors of
the CPU fails as it would with an accelerator. So code that forgets to move a tensor shows on any machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

DEVICE = torch.device("meta")
"""Torch's own name for tensors without values; within `elsewhere` they have some."""

_MOVES = ("_to_copy", "copy_", "copy")
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


class MismatchError(RuntimeError):
    """An operation on tensors of two devices."""


class Elsewhere(Tensor):
    """A tensor that reports `DEVICE`; `held` are its values on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "Elsewhere":
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.held = values
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], _: None, size: Any, stride: Any) -> "Elsewhere":
        return Elsewhere(inner["held"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(operation, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, args, kwargs or {})


class _Made(TorchFunctionMode):
    """Sees to tensors made of Python's numbers, which no dispatch mode sees being moved."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and options.get("device") == DEVICE:
            del options["device"]
            return function(*args, **options).to(DEVICE)
        return function(*args, **options)


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """Tensors can be on `DEVICE` within the block."""
    with _Mode(), _Made():  # type: ignore[no-untyped-call]
        yield DEVICE


def _run(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = operation.overloadpacket.__name__
    flat, _ = tree_flatten((args, kwargs))
    there = [one for one in flat if isinstance(one, Elsewhere)]
    here = [one for one in flat if isinstance(one, Tensor) and not isinstance(one, Elsewhere) and one.dim()]
    wanted = kwargs.get("device")
    if there and here and name not in _MOVES and not (name in _INDEXING and isinstance(args[0], Elsewhere)):
        raise MismatchError(f"{name} of tensors on {DEVICE} and on the CPU")
    if wanted == DEVICE and isinstance(kwargs.get("generator"), torch.Generator):
        raise MismatchError(f"{name} on {DEVICE} with a generator of the CPU")
    onto = wanted == DEVICE if wanted is not None else bool(there)
    if name == "copy_":
        onto = isinstance(args[0], Elsewhere)
    plain_args, plain_kwargs = tree_map_only(Elsewhere, lambda one: one.held, (args, kwargs))
    if wanted is not None:
        plain_kwargs = {**plain_kwargs, "device": torch.device("cpu")}
    found = operation(*plain_args, **plain_kwargs)
    owners = {id(one.held): one for one in there}

    def wrapped(one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        if id(one) in owners:
            return owners[id(one)]
        return Elsewhere(one) if onto else one

    return tree_map(wrapped, found)
