"""Layers that are matrices: linear ones, and convolutions, which are linear maps of patches.

Marks can be written into either. A convolution is seen as a linear layer that runs at every place of its answer: it is
fed a patch there, of channels × height × width numbers, and its weights are an out × in matrix of just that.
"""

import operator
import weakref

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from tramark.errors import SettingError

_graphs: weakref.WeakKeyDictionary[nn.Module, fx.GraphModule] = weakref.WeakKeyDictionary()


def traced(model: nn.Module) -> fx.GraphModule | None:
    """A model's graph, traced once as long as its modules stay the same ones; None if it cannot be traced."""
    graph = _graphs.get(model)
    if graph is not None:
        modules = dict(model.named_modules())
        targets = {node.target for node in graph.graph.nodes if node.op == "call_module"}
        if all(modules.get(target) is graph.get_submodule(target) for target in targets):
            return graph
    try:
        graph = _graphs[model] = fx.symbolic_trace(model)
    except Exception:  # whatever a stranger's forward() does under tracing
        return None
    return graph


def linear_layers(model: nn.Module) -> list[str]:
    """Names of the trainable linear layers: hidden ones, the last first, and then the output layer."""
    linear = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module.weight.requires_grad
    ]
    return [*reversed(linear[:-1]), *linear[-1:]]


def editable_layers(model: nn.Module) -> list[str]:
    """Names of the layers that a mark can be written into, the best first.

    The last hidden linear one comes first: by then the questions look least alike to the net, and little of it is left
    to search through. Those whose answer is added to something else, at the end of a way around, stand behind the other
    linear ones: in a transformer's blocks a mark takes ten times as much there. Then come convolutions, the last first.
    The output layer is the last resort, since a change there moves the logits of the task itself.

    >>> editable_layers(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2)))
    ['2', '0', '3']
    """
    linear = linear_layers(model)
    convolutions = [name for name, module in model.named_modules() if _is_convolution(module)]
    added = _added(model)
    hidden = sorted(linear[:-1], key=lambda name: name in added)
    found = [*hidden, *reversed(convolutions), *linear[-1:]]
    if not linear:
        found = [*found[1:], *found[:1]]
    if not found:
        raise SettingError(
            f"{type(model).__name__} has no trainable linear layer or convolution to write marks into: "
            "use a region of places (preset 'paper' or 'released')"
        )
    return found


def rows_fed(layer: nn.Module, inputs: Tensor) -> Tensor:
    """What a layer is fed, as rows of its matrix: inputs × … × in."""
    if not isinstance(layer, nn.Conv2d):
        return inputs
    padding = layer.padding
    if isinstance(padding, str):
        # As many on one side as on the other, and one more behind if that does not come out even.
        missing = [dilation * (size - 1) for dilation, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        high, wide = missing if padding == "same" else (0, 0)
        inputs, padding = F.pad(inputs, (wide // 2, wide - wide // 2, high // 2, high - high // 2)), (0, 0)
    patches = F.unfold(inputs, layer.kernel_size, layer.dilation, padding, layer.stride)
    return patches.transpose(1, 2)


def rows_answered(layer: nn.Module, outputs: Tensor) -> Tensor:
    """What it answers, likewise: inputs × … × out."""
    return outputs.flatten(2).transpose(1, 2) if isinstance(layer, nn.Conv2d) else outputs


def _added(model: nn.Module) -> set[str]:
    """The modules whose answer is added to something at once."""
    graph = traced(model)
    if graph is None:
        return set()
    sums = {
        node for node in graph.graph.nodes if node.target in (operator.add, operator.iadd, torch.add, "add", "add_")
    }
    return {str(node.target) for node in graph.graph.nodes if node.op == "call_module" and sums & set(node.users)}


def _is_convolution(module: nn.Module) -> bool:
    if not isinstance(module, nn.Conv2d):
        return False
    return module.groups == 1 and module.padding_mode == "zeros" and module.weight.requires_grad
