"""Run a model up to a layer once, and from there on as often as needed.

Writing marks asks the same questions of n models that differ only in one layer and later ones. What comes before that
layer is the same for all, so it is run once; what comes after is run for a batch of clients at a time. The cut is
made in the model's graph as torch.fx sees it. A model that torch.fx cannot trace is run whole each time instead:
slower, but right.
"""

import copy
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn


class Split(Protocol):
    """A model cut in front of a layer, loaded with some inputs."""

    layer_inputs: Tensor
    """What the layer is fed: inputs × … × in."""
    layer_outputs: Tensor
    """What it answers: inputs × … × out."""

    def after(self, layer_outputs: Tensor) -> Tensor:
        """The model's outputs if the layer had answered otherwise, for c copies of the inputs one after another."""

    def some(self, rows: Tensor) -> "Split":
        """The same for some of the inputs."""


def split(model: nn.Module, layer: str, inputs: Tensor) -> Split:
    """Run a model in evaluation mode on some inputs up to a layer, and be ready to go on from there."""
    return cut(model, layer, inputs) or WholeRun(model, layer, inputs)


def cut(model: nn.Module, layer: str, inputs: Tensor) -> "GraphRun | None":
    """The same, or nothing if what comes before the layer would have to be run again."""
    graph = _traced(model)
    try:
        return None if graph is None else GraphRun(graph, layer, inputs)
    except _NoCutError:
        return None


def channels_last(inputs: Tensor) -> Tensor:
    """Images in the layout in which convolutions are fastest; anything else as it is."""
    if inputs.dim() != 4:
        return inputs
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    if inputs.shape[1] == 1:
        # With one channel both layouts are the same in memory, and torch would take it for the other one.
        _, _, height, width = inputs.shape
        inputs = inputs.as_strided(inputs.shape, (height * width, 1, width, 1))
    return inputs


_graphs: weakref.WeakKeyDictionary[nn.Module, fx.GraphModule] = weakref.WeakKeyDictionary()


def _traced(model: nn.Module) -> fx.GraphModule | None:
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


class _NoCutError(Exception):
    pass


class GraphRun:
    """A run along the graph: only what lies behind the layer is repeated."""

    def __init__(self, graph: fx.GraphModule, layer: str, inputs: Tensor) -> None:
        nodes = list(graph.graph.nodes)
        cuts = [i for i, node in enumerate(nodes) if node.op == "call_module" and node.target == layer]
        if len(cuts) != 1 or len(nodes[cuts[0]].args) != 1 or nodes[cuts[0]].kwargs:
            raise _NoCutError
        self._graph, self._cut = graph, nodes[cuts[0]]
        runner = fx.Interpreter(graph)
        runner.args_iter = iter((inputs,))
        seen: list[Tensor] = []
        handle = graph.get_submodule(layer).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        with torch.no_grad():
            try:
                for node in nodes[: cuts[0] + 1]:
                    runner.env[node] = runner.run_node(node)
                    # What nothing later needs goes at once: all layers' answers would be many times the model.
                    for used in runner.user_to_last_uses.get(node, []):
                        del runner.env[used]
            finally:
                handle.remove()
        self.layer_inputs, self.layer_outputs = seen[0], runner.env[self._cut]
        later = set(nodes[cuts[0] + 1 :])
        # Only what is still needed is kept; a number that was computed from the batch's size would be wrong for copies.
        self._carried = {
            node: runner.env[node]
            for node in nodes[: cuts[0]]
            if not later.isdisjoint(node.users) and node.op != "get_attr"
        }
        if not all(isinstance(v, Tensor) and len(v) == len(inputs) for v in self._carried.values()):
            raise _NoCutError
        self._skipped: list[Any] = nodes[: cuts[0]]
        self._runner = fx.Interpreter(graph)

    def leads_to(self, layer: str) -> bool:
        """Whether a layer is run exactly once, and not before the cut."""
        runs = [i for i, n in enumerate(self._graph.graph.nodes) if n.op == "call_module" and n.target == layer]
        return len(runs) == 1 and runs[0] >= len(self._skipped)

    def some(self, rows: Tensor) -> "GraphRun":
        fewer = copy.copy(self)
        fewer.layer_inputs, fewer.layer_outputs = self.layer_inputs[rows], self.layer_outputs[rows]
        fewer._carried = {node: value[rows] for node, value in self._carried.items()}
        return fewer

    def after(self, layer_outputs: Tensor) -> Tensor:
        copies = len(layer_outputs) // len(self.layer_outputs)
        env: dict[fx.Node, Any] = dict.fromkeys(n for n in self._skipped if n.op != "get_attr")
        env |= {node: _copies(value, copies) for node, value in self._carried.items()}
        env[self._cut] = layer_outputs
        outputs: Tensor = self._runner.run(initial_env=env)
        return outputs


class WholeRun:
    """A run of the whole model with the layer's answer replaced."""

    def __init__(self, model: nn.Module, layer: str, inputs: Tensor) -> None:
        self._model, self._layer, self._inputs = model, model.get_submodule(layer), inputs
        seen: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            self._run(inputs, lambda _, args, out: seen.append((args[0], out)))
        if len(seen) != 1:
            raise ValueError(f"layer {layer!r} runs {len(seen)} times in one pass: choose one that runs once")
        self.layer_inputs, self.layer_outputs = seen[0]

    def after(self, layer_outputs: Tensor) -> Tensor:
        copies = len(layer_outputs) // len(self.layer_outputs)
        return self._run(_copies(self._inputs, copies), lambda *_: layer_outputs)

    def some(self, rows: Tensor) -> "WholeRun":
        fewer = copy.copy(self)
        fewer.layer_inputs, fewer.layer_outputs = self.layer_inputs[rows], self.layer_outputs[rows]
        fewer._inputs = self._inputs[rows]
        return fewer

    def _run(self, inputs: Tensor, hook: Callable[..., Any]) -> Tensor:
        handle = self._layer.register_forward_hook(hook)
        try:
            outputs: Tensor = self._model(inputs)
        finally:
            handle.remove()
        return outputs


def _copies(tensor: Tensor, copies: int) -> Tensor:
    return tensor.repeat(copies, *[1] * (tensor.dim() - 1))
