"""Runs of a model that is cut in front of a layer: along its graph, whole, or as rows of a layer that is not linear.

A run holds what the layer is fed and what it answers for some inputs, and goes on from any other answer of the layer.
`tramark.marks.split` makes them.
"""

import copy
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from tramark.errors import SettingError
from tramark.marks.layers import as_answered, rows_answered, rows_fed

_tails: weakref.WeakKeyDictionary[fx.GraphModule, dict[str, fx.GraphModule]] = weakref.WeakKeyDictionary()


def _tail(graph: fx.GraphModule, cut: fx.Node, carried: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of a graph behind a node as a module; its arguments are the carried values and the node's output."""
    tails, layer = _tails.setdefault(graph, {}), str(cut.target)
    if layer not in tails:
        nodes = list(graph.graph.nodes)
        later = set(nodes[nodes.index(cut) + 1 :])
        tail = fx.Graph()
        new = {node: tail.placeholder(node.name) for node in (*carried, cut)}
        for node in nodes:
            if node in later or (node.op == "get_attr" and not later.isdisjoint(node.users)):
                new[node] = tail.node_copy(node, new.__getitem__)
        tails[layer] = fx.GraphModule(graph, tail)
    return tails[layer]


class NoCut(Exception):  # noqa: N818
    """A graph that cannot be cut at this layer, or would have to be run again from the start."""


class _Run:
    """What both kinds of run share: tensors with one row per input."""

    layer_inputs: Tensor
    layer_outputs: Tensor
    positions: Tensor | None = None
    _carried: dict[Any, Tensor]

    def some(self, rows: Tensor) -> Self:
        return self._made_of([self], lambda tensors: tensors[0][rows])

    def joined(self, others: Sequence[Self]) -> Self:
        """This run and others, concatenated."""
        return self._made_of([self, *others], torch.cat)

    def only(self, positions: Tensor, *, short: bool = False) -> Self:
        """The run at fewer positions; the others keep their answers or, if `short`, are left out behind the layer."""
        new = copy.copy(self)
        new.positions = positions
        new.layer_inputs = self.layer_inputs.flatten(1, -2)[:, positions]
        new.layer_outputs = self.layer_outputs.flatten(1, -2)[:, positions]
        return new

    def _made_of(self, runs: Sequence[Self], make: Callable[[list[Tensor]], Tensor]) -> Self:
        new = copy.copy(self)
        new.layer_inputs = make([run.layer_inputs for run in runs])
        new.layer_outputs = make([run.layer_outputs for run in runs])
        new._carried = {name: make([run._carried[name] for run in runs]) for name in self._carried}
        return new


class GraphRun(_Run):
    """A run along the graph: only what follows the layer is run again."""

    def __init__(self, graph: fx.GraphModule, layer: str, inputs: Tensor) -> None:
        nodes = list(graph.graph.nodes)
        cuts = [i for i, node in enumerate(nodes) if node.op == "call_module" and node.target == layer]
        if len(cuts) != 1 or len(nodes[cuts[0]].args) != 1 or nodes[cuts[0]].kwargs:
            raise NoCut
        self._graph, self._cut = graph, nodes[cuts[0]]
        runner = fx.Interpreter(graph)
        runner.args_iter = iter((inputs,))
        seen: list[Tensor] = []
        handle = graph.get_submodule(layer).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        with torch.no_grad():
            try:
                for node in nodes[: cuts[0] + 1]:
                    runner.env[node] = runner.run_node(node)
                    # Values that nothing later needs are dropped: all layers' outputs would take many times the model.
                    for used in runner.user_to_last_uses.get(node, []):
                        del runner.env[used]
            finally:
                handle.remove()
        self.layer_inputs, self.layer_outputs = seen[0], runner.env[self._cut]
        later = set(nodes[cuts[0] + 1 :])
        # Kept: what later nodes need. A number computed from the batch size would be wrong for several copies.
        self._carried = {
            node: runner.env[node]
            for node in nodes[: cuts[0]]
            if not later.isdisjoint(node.users) and node.op != "get_attr"
        }
        if not all(isinstance(v, Tensor) and len(v) == len(inputs) for v in self._carried.values()):
            raise NoCut
        self._tail = _tail(graph, self._cut, tuple(self._carried))
        self._order = tuple(self._carried)

    @property
    def load(self) -> int:
        return self._carried.get(self._cut, self.layer_outputs).numel()

    def leads_to(self, layer: str) -> bool:
        """Whether a layer is run exactly once, and not before the cut."""
        nodes = list(self._graph.graph.nodes)
        runs = [i for i, n in enumerate(nodes) if n.op == "call_module" and n.target == layer]
        return len(runs) == 1 and runs[0] >= nodes.index(self._cut)

    def only(self, positions: Tensor, *, short: bool = False) -> Self:
        new = super().only(positions)
        if not short:
            new._carried = self._carried | {self._cut: self.layer_outputs}
            return new
        whole = self.layer_outputs.shape[:-1]
        new._carried = {
            node: value[:, positions] if value.shape[: len(whole)] == whole else value
            for node, value in self._carried.items()
        }
        return new

    def around(self) -> float:
        """Estimated on a few inputs, for a random direction of the answer.

        What goes around and what the layer is fed are different tensors, often with a normalisation between them. So
        gradients are compared for relative changes of their tensors.
        """
        few = self.some(torch.arange(min(8, len(self.layer_outputs))))
        fed = few.layer_inputs.detach().requires_grad_()
        few._carried = {
            node: value.detach().requires_grad_() if value.is_floating_point() else value
            for node, value in few._carried.items()
        }
        ways = [value for value in few._carried.values() if value.requires_grad]
        if not ways:
            return 0.0
        with torch.enable_grad():
            answers = few.after(self._graph.get_submodule(str(self._cut.target))(fed))
        slopes = torch.autograd.grad(answers, [fed, *ways], any_direction(answers), materialize_grads=True)
        through, *others = (
            float(slope.square().sum() * tensor.detach().square().sum())
            for slope, tensor in zip(slopes, [fed, *ways], strict=True)
        )
        return math.sqrt(sum(others) / max(through, 1e-30))

    def after(self, layer_outputs: Tensor) -> Tensor:
        copies = len(layer_outputs) // len(self.layer_outputs)
        carried = {node: _copies(value, copies) for node, value in self._carried.items()}
        answered = placed(carried.get(self._cut), self.positions, layer_outputs)
        outputs: Tensor = self._tail(*(carried[node] for node in self._order), answered)
        return outputs


class WholeRun(_Run):
    """A run of the whole model with the layer's answer replaced."""

    def __init__(self, model: nn.Module, layer: str, inputs: Tensor) -> None:
        self._model, self._layer, self._carried = model, model.get_submodule(layer), {"inputs": inputs}
        seen: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            self._run(inputs, lambda _, args, out: seen.append((args[0], out)))
        if len(seen) != 1:
            raise SettingError(f"layer {layer!r} runs {len(seen)} times in one pass: choose one that runs once")
        self.layer_inputs, self.layer_outputs = seen[0]
        self._width = self.layer_outputs[0].numel()

    @property
    def load(self) -> int:
        return len(self.layer_outputs) * self._width

    def around(self) -> float:
        return 0.0  # without a graph there is no telling

    def after(self, layer_outputs: Tensor) -> Tensor:
        copies = len(layer_outputs) // len(self.layer_outputs)
        recording = torch.is_grad_enabled()

        def replaced(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> Tensor:
            torch.set_grad_enabled(recording)
            return placed(out, self.positions, layer_outputs)

        # What comes before the layer needs no gradient, so nothing is recorded for it.
        with torch.no_grad():
            return self._run(_copies(self._carried["inputs"], copies), replaced)

    def _run(self, inputs: Tensor, hook: Callable[..., Any]) -> Tensor:
        handle = self._layer.register_forward_hook(hook)
        try:
            outputs: Tensor = self._model(inputs)
        finally:
            handle.remove()
        return outputs


class RowRun:
    """A convolution's or an embedding's run as that of a linear layer at every position of its output."""

    positions: Tensor | None = None

    def __init__(self, run: GraphRun | WholeRun, layer: nn.Conv2d | nn.Embedding) -> None:
        self._run, self._layer = run, layer
        self.layer_inputs = rows_fed(layer, run.layer_inputs)
        self.layer_outputs = rows_answered(layer, run.layer_outputs)

    @property
    def load(self) -> int:
        return self._run.load

    def around(self) -> float:
        # No gradient goes through an embedding: tokens have none, and no layer comes before it.
        return math.inf if isinstance(self._layer, nn.Embedding) else self._run.around()

    def after(self, layer_outputs: Tensor) -> Tensor:
        return self._run.after(as_answered(self._layer, layer_outputs, self._run.layer_outputs.shape))

    def some(self, rows: Tensor) -> "RowRun":
        return RowRun(self._run.some(rows), self._layer)


def any_direction(like: Tensor) -> Tensor:
    """Normal noise, the same each time."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)


def placed(whole: Tensor | None, positions: Tensor | None, some: Tensor) -> Tensor:
    """A layer's whole answer with `some` at the given positions; without positions, `some`."""
    if whole is None or positions is None:
        return some
    return whole.flatten(1, -2).index_copy(1, positions, some).view(whole.shape)


def _copies(tensor: Tensor, copies: int) -> Tensor:
    return tensor.repeat(copies, *[1] * (tensor.dim() - 1))
