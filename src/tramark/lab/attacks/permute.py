"""Symmetries of the weights: other weights, the same function.

The units of a hidden layer may stand in any order, W₁ → P W₁, W₂ → W₂ Pᵀ, and where only homogeneous functions such as
ReLU stand between, each may be scaled, W₁ → S W₁, W₂ → W₂ S⁻¹ with S > 0. Neither needs data or knowledge of the mark.
It leaves every answer as it was, but whoever looks for a mark at certain places of the weights looks in vain. A chain
of a convolution or linear layer, whatever keeps its channels apart, and the layers that take them in is found with
`torch.fx`, and only if nothing else sees those channels.
"""

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from tramark.errors import SettingError, one_line
from tramark.fleet.scratch import device_of
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import Layer

# What does to every number by itself the same thing; the first kind also commutes with scaling by a positive number.
HOMOGENEOUS: tuple[Any, ...] = (nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Dropout, torch.relu, F.relu, F.leaky_relu)


POINTWISE: tuple[Any, ...] = (
    *HOMOGENEOUS,
    *(nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.ReLU6, nn.Hardswish, nn.Softplus),
    *(torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu),
)


POOLS: tuple[Any, ...] = (
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout2d),
    *(F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d),
)


FLATTENS: tuple[Any, ...] = (nn.Flatten, torch.flatten, "flatten")


@dataclass(frozen=True)
class Chain:
    """Units of a layer that may be moved about, and everything that must follow.

    A norm or a target has `width` numbers for each unit, side by side: more than one behind a flattening.
    """

    source: str
    units: int
    norms: tuple[tuple[str, int], ...]
    targets: tuple[tuple[str, int], ...]
    scalable: bool
    """Whether a unit may be multiplied by a positive number, too: where there is a norm, behind it."""


@dataclass(frozen=True)
class PermuteUnits:
    """All hidden units and channels that can be, in another order."""

    seed: int = 0

    @torch.no_grad()
    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        permuted, random = copied(model), generator(self.seed)
        for chain in find_chains(permuted, loot):
            order = torch.randperm(chain.units, generator=random).to(device_of(permuted))
            for name, width in ((chain.source, 1), *chain.norms):
                module = permuted.get_submodule(name)
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    # A norm also counts its batches, in a tensor without dimensions.
                    if tensor.dim():
                        tensor.copy_(tensor[_expanded(order, width)])
            for name, width in chain.targets:
                weight = permuted.get_parameter(f"{name}.weight")
                weight.copy_(weight[:, _expanded(order, width)])
        return permuted


@dataclass(frozen=True)
class RescaleUnits:
    """All hidden units and channels behind which there is only ReLU and the like, each scaled by a factor between
    1/spread and spread, evenly in its logarithm."""

    spread: float = 4.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 < self.spread < math.inf:
            raise SettingError(f"spread must be a number above 1, not {self.spread}")

    @torch.no_grad()
    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        scaled, random = copied(model), generator(self.seed)
        chains = [chain for chain in find_chains(scaled, loot) if chain.scalable]
        if not chains:
            raise SettingError(
                f"{type(model).__name__} has no hidden units that can be scaled: it takes ReLU or another function "
                "with f(s·x) = s·f(x) behind them"
            )
        for chain in chains:
            exponents = 2 * torch.rand(chain.units, generator=random) - 1
            factors = (exponents * math.log(self.spread)).exp().to(device_of(scaled))
            start, width = chain.norms[0] if chain.norms else (chain.source, 1)
            for tensor in scaled.get_submodule(start).parameters(recurse=False):
                tensor.mul_(_columns(factors.repeat_interleave(width), tensor))
            for name, width in chain.targets:
                weight = scaled.get_parameter(f"{name}.weight")
                weight.div_(_columns(factors.repeat_interleave(width), weight[0])[None])
        return scaled


def find_chains(model: nn.Module, loot: Loot) -> list[Chain]:
    """All chains of a model in evaluation mode, of which two of the thief's samples show the shapes."""
    sample = loot.prepare(loot.dataset.train_inputs[loot.indices[:2]]).to(device_of(model))
    try:
        traced = fx.symbolic_trace(model)
        with torch.no_grad():
            ShapeProp(traced).propagate(sample)
    except Exception as error:  # whatever a stranger's forward() does under tracing
        raise SettingError(f"torch.fx cannot trace {type(model).__name__} ({one_line(error)})") from error
    walk = _Walk(model, traced.graph)
    if not (chains := list(walk.chains())):
        raise SettingError(
            f"{type(model).__name__} has no hidden units that can be shown to stand in any order: it takes a "
            "convolution or linear layer, then batch norm, activations, pooling or flattening, then another such layer"
        )
    return chains


class _Walk:
    """Follows channels from layer to layer through a graph whose nodes know their shapes."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self.modules = dict(model.named_modules())
        self.nodes = list(graph.nodes)
        runs = Counter(str(node.target) for node in self.nodes if node.op == "call_module")
        # A tensor that is used anywhere else, too, cannot be changed for this chain alone.
        users = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))
        bare = {id(_attribute(model, str(n.target))) for n in self.nodes if n.op == "get_attr"}
        self.own = {
            name
            for name, times in runs.items()
            if times == 1
            and all(users[id(p)] == 1 and id(p) not in bare for p in self.modules[name].parameters(recurse=False))
        }

    def chains(self) -> Iterator[Chain]:
        for node in self.nodes:
            layer = self._module(node)
            if _plain(layer) and node.target in self.own and (chain := self._from(node, layer)):
                yield chain

    def _from(self, start: fx.Node, layer: Layer) -> Chain | None:
        units = len(layer.weight)
        norms: list[tuple[str, int]] = []
        targets: list[tuple[str, int]] = []
        normed: set[int] = set()
        scalable = True
        # Each entry is a node, the dimension in which its units lie, how many numbers a unit has there, and how many
        # norms they went through.
        front = [(start, _last(start) if isinstance(layer, nn.Linear) else 1, 1, 0)]
        while front:
            node, dim, width, passed = front.pop()
            if not node.users:
                return None
            for user in node.users:
                module, kind = self._module(user), self._kind(user)
                if user.op == "output" or user.all_input_nodes != [node] or user.args[:1] != (node,):
                    return None
                if _plain(module):
                    if user.target not in self.own or dim != (_last(node) if isinstance(module, nn.Linear) else 1):
                        return None
                    targets.append((str(user.target), width))
                    normed.add(passed)
                elif isinstance(module, BatchNorm):
                    if dim != 1 or user.target not in self.own or module.running_mean is None:
                        return None
                    norms.append((str(user.target), width))
                    scalable &= module.affine and passed == 0
                    front.append((user, dim, width, passed + 1))
                elif kind in POINTWISE:
                    scalable &= kind in HOMOGENEOUS
                    front.append((user, dim, width, passed))
                elif kind in POOLS and dim == 1 and len(_shape(node)) == 4:
                    front.append((user, dim, width, passed))
                elif kind in FLATTENS and dim == 1 and _shape(user)[1:] == (math.prod(_shape(node)[1:]),):
                    front.append((user, 1, width * math.prod(_shape(node)[2:]), passed))
                else:
                    return None
        scalable = scalable and len(normed) == 1 and len(norms) <= 1
        return Chain(str(start.target), units, tuple(norms), tuple(targets), scalable)

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.modules.get(str(node.target)) if node.op == "call_module" else None

    def _kind(self, node: fx.Node) -> type[nn.Module] | Callable[..., Any] | str:
        """What tells one kind of node from another: a module's class, a function, or a method's name."""
        module = self._module(node)
        return node.target if module is None else type(module)


def _plain(module: nn.Module | None) -> TypeGuard[Layer]:
    """A layer of torch's own whose every output sees every input; nobody knows what a class made from one does."""
    return type(module) in get_args(Layer) and getattr(module, "groups", 1) == 1


def _shape(node: fx.Node) -> tuple[int, ...]:
    meta = node.meta.get("tensor_meta")
    return tuple(meta.shape) if meta is not None and hasattr(meta, "shape") else ()


def _last(node: fx.Node) -> int:
    return len(_shape(node)) - 1


def _attribute(model: nn.Module, path: str) -> Any:
    return operator.attrgetter(path)(model)


def _expanded(order: Tensor, width: int) -> Tensor:
    """The order of all numbers, if each unit has `width` of them side by side."""
    return (order[:, None] * width + torch.arange(width, device=order.device)).flatten()


def _columns(factors: Tensor, tensor: Tensor) -> Tensor:
    """Factors in a shape that multiplies the first dimension of a tensor."""
    return factors.view(-1, *[1] * (tensor.dim() - 1))
