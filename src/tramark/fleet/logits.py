"""Find the logits in what a model returns: a tensor, or a tensor somewhere in a mapping, a tuple or an object."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, fx, nn

from tramark.errors import SettingError

Pick = str | int | Callable[[Any], Tensor]
"""Which part of a model's output holds the logits: a key or attribute, a position, or a function of the output."""


def find_logits(output: Any) -> Pick | None:
    """Where the logits are in a model's output; None if the output is the logits.

    >>> import torch
    >>> find_logits({"loss": None, "logits": torch.zeros(2, 3)})
    'logits'
    """
    if isinstance(output, Tensor):
        return None
    if (isinstance(output, Mapping) and "logits" in output) or hasattr(output, "logits"):
        return "logits"
    if isinstance(output, Mapping):
        parts: dict[Any, Any] = dict(output)
    elif isinstance(output, tuple | list):
        parts = dict(enumerate(output))
    else:
        parts = dict(getattr(output, "__dict__", {}))
    # A loss has no dimensions, hidden states have three.
    for dimensions in (2, 1):
        for place, part in parts.items():
            if isinstance(part, Tensor) and part.dim() == dimensions:
                return cast(Pick, place)
    raise SettingError(
        f"the model returns {_kind(output)}: no tensor of logits was found in it. Say where it is: "
        "logits='name', logits=0 or logits=a function of the output"
    )


def take_logits(output: Any, pick: Pick | None) -> Tensor:
    """The logits in a model's output, from where `pick` says that they are."""
    if pick is None:
        found = output
    elif callable(pick):
        found = pick(output)
    else:
        try:
            found = getattr(output, pick) if isinstance(pick, str) and hasattr(output, pick) else output[pick]
        except (KeyError, IndexError, TypeError):
            raise SettingError(f"the model's output has no logits at {pick!r}: it is {_kind(output)}") from None
    # Under torch.fx tracing there are proxies in the place of tensors.
    if not isinstance(found, Tensor | fx.Proxy):
        raise SettingError(f"{_kind(found)} was found in the model's output where its logits should be")
    return cast(Tensor, found)


def return_logits(model: nn.Module, pick: Pick) -> None:
    """Let a model, in place, return its logits and nothing else. Its weights and their names stay what they are."""
    kind = type(model)

    def forward(self: nn.Module, *args: Any, **options: Any) -> Tensor:
        return take_logits(kind.forward(self, *args, **options), pick)

    # A subclass, not a wrapper: names of weights stay, and torch.fx traces the forward() of the class.
    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _kind(output: Any) -> str:
    name = type(output).__name__
    if isinstance(output, Mapping):
        return f"{name} with {', '.join(map(repr, output))}"
    return f"{name} of {len(output)}" if isinstance(output, tuple | list) else name
