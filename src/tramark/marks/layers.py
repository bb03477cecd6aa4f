"""Layers that are matrices: linear ones, embeddings and convolutions.

Marks can be written into any of them. A convolution is seen as a linear layer that runs at every place of its answer:
it is fed a patch of channels × height × width numbers there, and its weights are an out × in matrix. An embedding is a
linear layer that is fed a one-hot row for each token: its inputs are the vocabulary.
"""

import operator
import weakref
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from tramark.errors import SettingError
from tramark.fleet.layout import embedding_layers

_graphs: weakref.WeakKeyDictionary[nn.Module, tuple[type, fx.GraphModule]] = weakref.WeakKeyDictionary()


def traced(model: nn.Module) -> fx.GraphModule | None:
    """A model's graph, traced once as long as its class and its modules stay the same; None if it cannot be traced."""
    kind, graph = _graphs.get(model, (None, None))
    if graph is not None and kind is type(model):
        modules = dict(model.named_modules())
        targets = {node.target for node in graph.graph.nodes if node.op == "call_module"}
        if all(modules.get(target) is graph.get_submodule(target) for target in targets):
            return graph
    try:
        graph = fx.symbolic_trace(model)
    except Exception:  # whatever a stranger's forward() does under tracing
        return None
    _graphs[model] = type(model), graph
    return graph


def linear_layers(model: nn.Module) -> list[str]:
    """Names of the trainable linear layers: hidden ones, the last first, and then the output layer."""
    linear = [
        name
        for name, module in model.named_modules()
        # nn.MultiheadAttention calls its output projection functionally: no hook sees it run.
        if isinstance(module, nn.Linear)
        and not isinstance(module, NonDynamicallyQuantizableLinear)
        and module.weight.requires_grad
    ]
    return [*reversed(linear[:-1]), *linear[-1:]]


def editable_layers(model: nn.Module) -> list[str]:
    """Names of the layers that a mark can be written into, the best first.

    The last hidden linear layer comes first: there the questions differ most, and few layers follow that the search
    has to run through. Layers that feed a residual sum rank last among the linear ones: in a transformer a mark
    takes ten times as large an edit there. Then come embeddings, the largest vocabulary first, and convolutions, the
    last first. The output layer comes last, since an edit there changes the logits of the task itself.

    >>> editable_layers(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2)))
    ['2', '0', '3']
    """
    linear = linear_layers(model)
    convolutions = [name for name, module in model.named_modules() if _is_convolution(module)]
    added = _added(model)
    hidden = sorted(linear[:-1], key=lambda name: name in added)
    found = [*hidden, *embedding_layers(model), *reversed(convolutions), *linear[-1:]]
    if not linear:
        found = [*found[1:], *found[:1]]
    if not found:
        raise SettingError(
            f"{type(model).__name__} has no trainable linear layer, embedding or convolution to write marks into: "
            "use a region of places (preset 'paper' or 'released')"
        )
    return found


def candidates(model: nn.Module, count: int, odd: Collection[str] = ()) -> tuple[str, ...]:
    """The layers that are worth trying, the likeliest first: at most `count` of each kind, and none in `odd`.

    Those are hidden linear layers, the last ones and the first, and embeddings. In a net without either they are the
    last convolutions and the output layer: marks cost a hundred times as much there. Layers that feed a residual sum
    are tried if no others are hidden.

    >>> candidates(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2)), 2)
    ('2',)
    >>> candidates(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2)), 2)
    ('0', '2')
    """
    found = [name for name in editable_layers(model) if name not in odd]
    linear, added = linear_layers(model), _added(model)
    hidden = [name for name in found if name in linear[:-1]]
    hidden = [name for name in hidden if name not in added] or hidden
    if len(hidden) > count:
        hidden = [*hidden[: count - 1], hidden[-1]]
    embeddings = [name for name in found if isinstance(model.get_submodule(name), nn.Embedding)]
    convolutions = [name for name in found if isinstance(model.get_submodule(name), nn.Conv2d)]
    heads = [name for name in found if name in linear[-1:]]
    chosen = (*hidden, *embeddings[:count]) or (*convolutions[:count], *heads)
    if not chosen:
        raise SettingError("no layer can bear marks")
    return chosen


@dataclass(frozen=True, eq=False)
class OneHot:
    """One-hot rows, inputs × … × in, kept as token ids: the rows of a large vocabulary would fill the memory."""

    ids: Tensor
    width: int
    never: tuple[int, ...] = ()
    """Tokens that are fed as zeros: padding."""

    def __len__(self) -> int:
        return len(self.ids)

    def __matmul__(self, edit: Tensor) -> Tensor:
        """The rows' product with an in × q matrix that is zero at the tokens in `never`."""
        return edit[self.ids]

    def averaged(self, count: int) -> Tensor:
        """The mean rows of at most `count` stretches of positions: inputs × stretches × in."""
        ids = self.ids.reshape(len(self), -1).long()
        means = []
        for stretch in ids.tensor_split(min(count, ids.shape[1]), dim=1):
            share = torch.full(stretch.shape, 1 / stretch.shape[1], device=ids.device)
            means.append(share.new_zeros(len(self), self.width).scatter_add_(1, stretch, share))
            means[-1][:, list(self.never)] = 0
        return torch.stack(means, dim=1)


Rows = Tensor | OneHot


def never_fed(layer: nn.Module) -> tuple[int, ...]:
    """The inputs of a layer that nothing may be written to: an embedding's padding, whose vector never changes."""
    padding = layer.padding_idx if isinstance(layer, nn.Embedding) else None
    return () if padding is None else (padding,)


def rows_fed(layer: nn.Module, inputs: Tensor) -> Rows:
    """What a layer is fed, as rows of its matrix: inputs × … × in."""
    if isinstance(layer, nn.Embedding):
        return OneHot(inputs, layer.num_embeddings, never_fed(layer))
    if not isinstance(layer, nn.Conv2d):
        return inputs
    padding = layer.padding
    if isinstance(padding, str):
        # Padding "same" is split evenly; an odd one goes behind.
        missing = [dilation * (size - 1) for dilation, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        high, wide = missing if padding == "same" else (0, 0)
        inputs, padding = F.pad(inputs, (wide // 2, wide - wide // 2, high // 2, high - high // 2)), (0, 0)
    patches = F.unfold(inputs, layer.kernel_size, layer.dilation, padding, layer.stride)
    return patches.transpose(1, 2)


def rows_answered(layer: nn.Module, outputs: Tensor) -> Tensor:
    """What a layer answers, as rows: inputs × … × out."""
    return outputs.flatten(2).transpose(1, 2) if isinstance(layer, nn.Conv2d) else outputs


def as_answered(layer: nn.Module, rows: Tensor, shape: torch.Size) -> Tensor:
    """Rows as the layer answers them, in the shape of its own answer but for the number of inputs."""
    return (rows.transpose(1, 2) if isinstance(layer, nn.Conv2d) else rows).reshape(len(rows), *shape[1:])


def _added(model: nn.Module) -> set[str]:
    """Names of the modules whose output is an operand of a sum, directly or behind dropout."""
    graph = traced(model)
    if graph is None:
        return set()
    sums = {
        node for node in graph.graph.nodes if node.target in (operator.add, operator.iadd, torch.add, "add", "add_")
    }
    # Backwards, so that a dropout is known before what it drops from.
    for node in reversed(graph.graph.nodes):
        module = graph.get_submodule(str(node.target)) if node.op == "call_module" else None
        if (isinstance(module, nn.Dropout | nn.Identity) or node.target is F.dropout) and sums & set(node.users):
            sums.add(node)
    return {str(node.target) for node in graph.graph.nodes if node.op == "call_module" and sums & set(node.users)}


def _is_convolution(module: nn.Module) -> bool:
    if not isinstance(module, nn.Conv2d):
        return False
    return module.groups == 1 and module.padding_mode == "zeros" and module.weight.requires_grad
