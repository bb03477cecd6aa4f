"""A model run from a layer on must answer as the whole, whichever positions of a sequence it is run for."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.lab.models.vit import VisionTransformer
from tramark.marks import split as module
from tramark.marks.runs import GraphRun, WholeRun
from tramark.marks.split import split


def vit() -> nn.Module:
    return VisionTransformer((1, 8, 8), 10, patch=2, dim=16, depth=2, heads=2, hidden=32)


class Sequences(nn.Module):
    """A linear layer at sixteen positions, read out in one way or another."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 16), nn.Linear(16, 10)
        self.mix: nn.Module = nn.Linear(16, 16)

    def hidden(self, x: Tensor) -> Tensor:
        tokens = torch.relu(self.embed(x.flatten(1).unflatten(1, (16, 4))))
        out: Tensor = tokens + torch.relu(self.mix(tokens))
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.read(self.hidden(x), x))
        return out

    def read(self, hidden: Tensor, x: Tensor) -> Tensor:
        raise NotImplementedError


class Last(Sequences):
    def read(self, hidden: Tensor, x: Tensor) -> Tensor:
        return hidden[:, -1]


class Fifth(Sequences):
    """On a sequence of one position there is no fifth."""

    def read(self, hidden: Tensor, x: Tensor) -> Tensor:
        return hidden[:, 4]


class Mean(Sequences):
    def read(self, hidden: Tensor, x: Tensor) -> Tensor:
        return hidden.mean(1)


class Largest(Sequences):
    """No gradient at most positions, but a larger value there would count."""

    def read(self, hidden: Tensor, x: Tensor) -> Tensor:
        return F.pad(hidden.amax(2).amax(1, keepdim=True), (0, 15))


class Looked(Sequences):
    """The input says which position counts."""

    def read(self, hidden: Tensor, x: Tensor) -> Tensor:
        return hidden.gather(1, x.flatten(1)[:, :16].argmax(1)[:, None, None].expand(-1, 1, 16))[:, 0]


class Untraceable(Last):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 1e30 else x + 0)


class Grid(Sequences):
    """Positions in rows and columns, of which one row counts."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Unflatten(1, (4, 4)), nn.Linear(16, 16), nn.Flatten(1, 2))

    def read(self, hidden: Tensor, x: Tensor) -> Tensor:
        return hidden[:, 8:12].mean(1)


def made(make: Any) -> tuple[nn.Module, str, Tensor]:
    torch.manual_seed(0)
    model = make().eval()
    return model, "blocks.1.fc2" if make is vit else "mix", torch.randn(12, 1, 8, 8)


@pytest.mark.parametrize(
    ("make", "kind", "positions", "short"),
    [
        (vit, GraphRun, [0], True),
        (Last, GraphRun, [15], True),
        (Fifth, GraphRun, [4], False),
        (Mean, GraphRun, None, False),
        (Largest, GraphRun, None, False),
        (Untraceable, WholeRun, [15], False),
    ],
)
@pytest.mark.parametrize("piece", [2**21, 5 * 64])
def test_only_positions_that_count_are_kept(
    make: Any, kind: type, positions: list[int] | None, short: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    model, layer, inputs = made(make)
    run = split(model, layer, inputs)
    assert isinstance(run, kind)
    assert (None if run.positions is None else run.positions.tolist()) == positions
    assert run.layer_outputs.shape == (12, len(positions or range(16)), 16)
    assert (run.load == run.layer_outputs.numel()) == (short or positions is None)
    check(model, layer, inputs, run)


def test_positions_on_a_grid() -> None:
    model, _, inputs = made(Grid)
    run = split(model, "mix.1", inputs)
    assert run.positions is not None
    assert run.positions.tolist() == [8, 9, 10, 11]
    check(model, "mix.1", inputs, run)


@pytest.mark.parametrize("piece", [2**21, 3 * 64])
def test_positions_that_differ_from_input_to_input_all_count(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    model, layer, inputs = made(Looked)
    run = split(model, layer, inputs)
    assert run.positions is None
    check(model, layer, inputs, run)


def check(model: nn.Module, layer: str, inputs: Tensor, run: module.Split) -> None:
    """Change the layer's weights: with that change of its answers, the run answers as the changed model does."""
    linear = model.get_submodule(layer)
    assert isinstance(linear, nn.Linear)
    change = torch.randn(linear.weight.shape) / 4
    with torch.no_grad():
        base, moved = run.layer_outputs, run.layer_outputs + run.layer_inputs @ change.T
        found = run.after(torch.cat([base, moved]))
        torch.testing.assert_close(found[:12], model(inputs), atol=1e-5, rtol=1e-4)
        few = run.some(torch.tensor([3, 8]))
        linear.weight += change
        torch.testing.assert_close(found[12:], model(inputs), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(few.after(moved[[3, 8]]), found[[15, 20]], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found[:12], found[12:], atol=1e-3)


@pytest.mark.parametrize("make", [vit, Fifth, Mean, Untraceable])
def test_gradients_run_back_to_the_layer(make: Any) -> None:
    model, layer, inputs = made(make)
    run = split(model, layer, inputs)
    outputs = run.layer_outputs.clone().requires_grad_()
    slope = torch.autograd.grad(run.after(outputs).square().sum(), outputs)[0]
    weight = model.get_parameter(f"{layer}.weight")
    expected = torch.autograd.grad(model(inputs).square().sum(), weight)[0]
    assert isinstance(run.layer_inputs, Tensor)
    found = slope.flatten(0, -2).T @ run.layer_inputs.flatten(0, -2)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_what_was_traced_goes_with_its_model() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    split(model, "0", torch.randn(3, 4)).after(torch.randn(3, 8))
    weight = weakref.ref(model[0].weight)
    del model
    for _ in range(2):  # the model first, then its graph
        gc.collect()
    assert weight() is None


def test_a_model_that_was_changed_is_traced_anew() -> None:
    model, inputs = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4)
    before = split(model, "0", inputs)
    model[2] = nn.Linear(8, 5)
    after = split(model, "0", inputs)
    assert before.after(before.layer_outputs).shape == (3, 2)
    torch.testing.assert_close(after.after(after.layer_outputs), model(inputs))
