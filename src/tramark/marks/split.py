"""Run a model up to a layer once, and from there on as often as needed.

Writing marks asks the same questions of n models that differ only in one layer and later ones. What comes before that
layer is the same for all, so it is run once, some inputs at a time; what comes after is run for a batch of clients at
a time. The cut is made in the model's graph as torch.fx sees it. A model that torch.fx cannot trace is run whole each
time instead: slower, but right.

A layer may run at every position of a sequence while the model's answer depends on few of them: in the last block of
a transformer with a class token, on one. A run keeps only the positions that count. Where what comes after answers
the same for a sequence of those alone, it is given no more. A convolution is run as a linear layer over the patches of
its input, at all positions.
"""

import copy
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor, fx, nn

from tramark.errors import SettingError
from tramark.marks.layers import rows_answered, rows_fed, traced

PIECE = 2**21
"""About so many numbers of input are run at a time: fourteen colour images of 224×224."""


class Split(Protocol):
    """A model cut in front of a layer, loaded with some inputs."""

    layer_inputs: Tensor
    """What the layer is fed: inputs × … × in, or inputs × positions × in if not all positions count."""
    layer_outputs: Tensor
    """What it answers, likewise: inputs × … × out."""
    positions: Tensor | None
    """The positions that count; None if all do."""

    @property
    def load(self) -> int:
        """How many numbers of the layer's output `after` goes through for one copy of the inputs."""

    def after(self, layer_outputs: Tensor) -> Tensor:
        """The model's outputs if the layer had answered otherwise, for c copies of the inputs one after another."""

    def around(self) -> float:
        """How much of a gradient goes around the layer, as in a residual net, beside what goes back through it."""

    def some(self, rows: Tensor) -> "Split":
        """The same for some of the inputs."""


def split(model: nn.Module, layer: str, inputs: Tensor) -> Split:
    """Run a model in evaluation mode on some inputs up to a layer, and be ready to go on from there."""
    own = model.get_submodule(layer)
    run = cut(model, layer, inputs) or _in_pieces(lambda piece: WholeRun(model, layer, piece), inputs, own)
    return PatchRun(run, own) if isinstance(own, nn.Conv2d) else run


def cut(model: nn.Module, layer: str, inputs: Tensor) -> "GraphRun | None":
    """The same, or nothing if what comes before the layer would have to be run again."""
    graph = traced(model)
    if graph is None:
        return None
    try:
        return _in_pieces(lambda piece: GraphRun(graph, layer, piece), inputs, model.get_submodule(layer))
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


_tails: weakref.WeakKeyDictionary[fx.GraphModule, dict[str, fx.GraphModule]] = weakref.WeakKeyDictionary()


def _tail(graph: fx.GraphModule, cut: fx.Node, carried: Sequence[fx.Node]) -> fx.GraphModule:
    """What comes after a node, as a module of its own: it is given what is carried over, and the node's answer."""
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


class _NoCutError(Exception):
    pass


class _Run:
    """What both kinds of run share: tensors with a row for each input."""

    layer_inputs: Tensor
    layer_outputs: Tensor
    positions: Tensor | None = None
    _carried: dict[Any, Tensor]

    def some(self, rows: Tensor) -> Self:
        return self._made_of([self], lambda tensors: tensors[0][rows])

    def joined(self, others: Sequence[Self]) -> Self:
        """With others behind."""
        return self._made_of([self, *others], torch.cat)

    def only(self, positions: Tensor, *, short: bool = False) -> Self:
        """With fewer positions. The others stay what they are, or what comes after is given a shorter sequence."""
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
        """The same, by a few inputs and a random direction of the answer.

        What goes around and what the layer is fed are different tensors, often with a norm between them, so that a
        gradient counts by what it says of a change of its tensor by a given share.
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
        slopes = torch.autograd.grad(answers, [fed, *ways], _any_direction(answers), materialize_grads=True)
        through, *others = (
            float(slope.square().sum() * tensor.detach().square().sum())
            for slope, tensor in zip(slopes, [fed, *ways], strict=True)
        )
        return math.sqrt(sum(others) / max(through, 1e-30))

    def after(self, layer_outputs: Tensor) -> Tensor:
        copies = len(layer_outputs) // len(self.layer_outputs)
        carried = {node: _copies(value, copies) for node, value in self._carried.items()}
        answered = _placed(carried.get(self._cut), self.positions, layer_outputs)
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
            return _placed(out, self.positions, layer_outputs)

        # No gradient is wanted of what comes before the layer, so nothing is kept for one.
        with torch.no_grad():
            return self._run(_copies(self._carried["inputs"], copies), replaced)

    def _run(self, inputs: Tensor, hook: Callable[..., Any]) -> Tensor:
        handle = self._layer.register_forward_hook(hook)
        try:
            outputs: Tensor = self._model(inputs)
        finally:
            handle.remove()
        return outputs


class PatchRun:
    """A convolution's run, seen as that of a linear layer at every place of its answer."""

    positions: Tensor | None = None

    def __init__(self, run: GraphRun | WholeRun, layer: nn.Conv2d) -> None:
        self._run, self._layer = run, layer
        self.layer_inputs = rows_fed(layer, run.layer_inputs)
        self.layer_outputs = rows_answered(layer, run.layer_outputs)

    @property
    def load(self) -> int:
        return self._run.load

    def around(self) -> float:
        return self._run.around()

    def after(self, layer_outputs: Tensor) -> Tensor:
        return self._run.after(layer_outputs.transpose(1, 2).unflatten(2, self._run.layer_outputs.shape[2:]))

    def some(self, rows: Tensor) -> "PatchRun":
        return PatchRun(self._run.some(rows), self._layer)


Run = TypeVar("Run", GraphRun, WholeRun)


def _in_pieces(cut: Callable[[Tensor], Run], inputs: Tensor, layer: nn.Module) -> Run:
    """Runs of some inputs at a time as one, of a linear layer with the positions that count for any of them."""
    pieces = inputs.split(max(1, PIECE // inputs[0].numel()))
    first = cut(pieces[0])
    positions = _reaching(first) if isinstance(layer, nn.Linear) else None
    if positions is not None:
        short = isinstance(first, GraphRun) and _can_be_short(first, positions)
        runs = [first.only(positions, short=short)]
        for piece in pieces[1:]:
            run = cut(piece)
            if not _all_that_counts(run, positions):
                break
            runs.append(run.only(positions, short=short))
        else:
            return runs[0].joined(runs[1:])
    return first.joined([cut(piece) for piece in pieces[1:]])


def _reaching(run: Run) -> Tensor | None:
    """The positions of the layer's answer that the model's answer depends on; None if all do."""
    if run.layer_outputs.dim() < 3:
        return None
    few = run.some(torch.arange(min(4, len(run.layer_outputs))))
    outputs = few.layer_outputs.detach().clone().requires_grad_()
    with torch.enable_grad():
        answers = few.after(outputs)
    slopes = torch.autograd.grad(answers, outputs, _any_direction(answers))[0].flatten(1, -2)
    positions = slopes.ne(0).any(-1).any(0).nonzero().flatten()
    if not 0 < len(positions) < slopes.shape[1] or not _all_that_counts(run, positions):
        return None
    return positions


@torch.no_grad()
def _all_that_counts(run: Run, positions: Tensor) -> bool:
    """Whether nothing at other positions reaches the model's answer: NaN gets through wherever anything could."""
    kept = run.layer_outputs.flatten(1, -2)[:, positions]
    others = torch.full_like(run.layer_outputs, torch.nan)
    return bool(torch.isfinite(run.after(_placed(others, positions, kept))).all())


@torch.no_grad()
def _can_be_short(run: GraphRun, positions: Tensor) -> bool:
    """Whether what comes after answers the same, for any answer of the layer, if it is given some positions alone."""
    short = run.only(positions, short=True)
    changed = short.layer_outputs + _any_direction(short.layer_outputs) * short.layer_outputs.std()
    expected = run.only(positions).after(changed)
    try:
        found = short.after(changed)
    except Exception:  # whatever a stranger's forward() does with a sequence too short
        return False
    return found.shape == expected.shape and torch.allclose(
        found, expected, rtol=1e-3, atol=1e-3 * float(expected.std())
    )


def _any_direction(like: Tensor) -> Tensor:
    """Normal noise, the same each time."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)


def _placed(whole: Tensor | None, positions: Tensor | None, some: Tensor) -> Tensor:
    """A layer's whole answer with another one at some positions; without positions, the other one."""
    if whole is None or positions is None:
        return some
    return whole.flatten(1, -2).index_copy(1, positions, some).view(whole.shape)


def _copies(tensor: Tensor, copies: int) -> Tensor:
    return tensor.repeat(copies, *[1] * (tensor.dim() - 1))
