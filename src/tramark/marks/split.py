"""Run a model up to a layer once, and from there on as often as needed.

Writing marks asks the same questions of n models that differ only in one layer and later ones. What comes before that
layer is the same for all, so it is run once, some inputs at a time; what comes after is run for a batch of clients at
a time. The cut is made in the model's graph as torch.fx sees it. A model that torch.fx cannot trace is run whole each
time instead: slower, but right.

A layer may run at every position of a sequence while the model's answer depends on few of them: in the last block of
a transformer with a class token, on one. A run keeps only the positions that count. Where what comes after answers
the same for a sequence of those alone, it is given no more. A convolution is run as a linear layer over the patches of
its input, and an embedding as one over one-hot rows, at all positions.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from tramark.marks.layers import Rows, traced
from tramark.marks.runs import GraphRun, NoCut, RowRun, WholeRun, any_direction, placed

PIECE = 2**21
"""Numbers of input that are run at a time, about: fourteen colour images of 224×224."""


class Split(Protocol):
    """A model cut in front of a layer, loaded with some inputs."""

    layer_outputs: Tensor
    """What the layer answers: inputs × … × out, or inputs × positions × out if not all positions count."""
    positions: Tensor | None
    """The positions that count; None if all do."""

    @property
    def layer_inputs(self) -> Rows:
        """What the layer is fed, in the same form: inputs × … × in."""

    @property
    def load(self) -> int:
        """Numbers of the layer's output that `after` processes for one copy of the inputs."""

    def after(self, layer_outputs: Tensor) -> Tensor:
        """The model's outputs for other answers of the layer, given for c copies of the inputs one after another."""

    def around(self) -> float:
        """Size of the gradient that goes around the layer, as in a residual net, relative to that through the layer."""

    def some(self, rows: Tensor) -> "Split":
        """The run of some of the inputs."""


def split(model: nn.Module, layer: str, inputs: Tensor) -> Split:
    """A run of a model, in evaluation mode, up to a layer: it can go on from any answer of the layer."""
    own = model.get_submodule(layer)
    run = cut(model, layer, inputs) or _in_pieces(lambda piece: WholeRun(model, layer, piece), inputs, own)
    return RowRun(run, own) if isinstance(own, nn.Conv2d | nn.Embedding) else run


def cut(model: nn.Module, layer: str, inputs: Tensor) -> "GraphRun | None":
    """A run along the model's graph; None if the graph cannot be cut at the layer."""
    graph = traced(model)
    if graph is None:
        return None
    try:
        return _in_pieces(lambda piece: GraphRun(graph, layer, piece), inputs, model.get_submodule(layer))
    except NoCut:
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


Run = TypeVar("Run", GraphRun, WholeRun)


def _in_pieces(cut: Callable[[Tensor], Run], inputs: Tensor, layer: nn.Module) -> Run:
    """Concatenates the runs of several input batches; a linear layer keeps only the positions that count."""
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
    slopes = torch.autograd.grad(answers, outputs, any_direction(answers))[0].flatten(1, -2)
    positions = slopes.ne(0).any(-1).any(0).nonzero().flatten()
    if not 0 < len(positions) < slopes.shape[1] or not _all_that_counts(run, positions):
        return None
    return positions


@torch.no_grad()
def _all_that_counts(run: Run, positions: Tensor) -> bool:
    """Whether nothing at other positions reaches the model's answer: NaN gets through wherever anything could."""
    kept = run.layer_outputs.flatten(1, -2)[:, positions]
    others = torch.full_like(run.layer_outputs, torch.nan)
    return bool(torch.isfinite(run.after(placed(others, positions, kept))).all())


@torch.no_grad()
def _can_be_short(run: GraphRun, positions: Tensor) -> bool:
    """Whether what comes after answers the same, for any answer of the layer, if it is given some positions alone."""
    short = run.only(positions, short=True)
    changed = short.layer_outputs + any_direction(short.layer_outputs) * short.layer_outputs.std()
    expected = run.only(positions).after(changed)
    try:
        found = short.after(changed)
    except Exception:  # whatever a stranger's forward() does with a sequence too short
        return False
    return found.shape == expected.shape and torch.allclose(
        found, expected, rtol=1e-3, atol=1e-3 * float(expected.std())
    )
