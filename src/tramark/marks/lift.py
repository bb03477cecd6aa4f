"""Let a search switch on units that are off.

A unit that is off passes no gradient, so a search cannot see that raising it would help; where all units behind a layer
are off, it sees nothing at all. Within `Lifting`, a unit that is off passes a share of those gradients that would
switch it on. What the model answers does not change.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

SLOPE = 0.3
"""The share of a gradient that a unit passes while it is off."""

_OFF: dict[Callable[..., Any], float] = {
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu6, F.hardswish), 0.0),
    **dict.fromkeys((F.gelu, F.silu, F.mish), -1.0),
}
"""Activations, and below which input a unit counts as off."""


class Lifting(TorchFunctionMode):
    """Within this context units that are off pass gradients that would switch them on.

    >>> inputs = torch.tensor([-1.0, 1.0], requires_grad=True)
    >>> with Lifting():
    ...     (-torch.relu(inputs)).sum().backward()
    >>> inputs.grad
    tensor([-0.3000, -1.0000])
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        limit = _OFF.get(func)
        if limit is None or not torch.is_grad_enabled():
            return func(*args, **given)
        inputs = args[0] if args else given["input"]
        # Worked out first: the activation may write over its input.
        lift = _Lift.apply(inputs, limit)  # type: ignore[no-untyped-call]
        return func(*args, **given) + lift


class _Lift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(inputs <= limit)
        return torch.zeros((), device=inputs.device).expand_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (off,) = ctx.saved_tensors
        return SLOPE * gradient.clamp_max(0) * off, None
