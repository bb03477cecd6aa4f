"""Layers as matrices."""

import pytest
import torch
from torch import nn

from tramark.lab.models import build
from tramark.marks.layers import editable_layers, linear_layers, rows_answered, rows_fed


def test_the_best_layer_to_write_into_comes_first() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    assert editable_layers(net) == linear_layers(net) == ["2", "0", "4"]
    net.requires_grad_(False)
    net.get_submodule("4").requires_grad_(True)
    assert editable_layers(net) == ["4"]


def test_without_a_hidden_linear_layer_it_is_the_last_convolution() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(4, 2)
    )
    assert editable_layers(net) == ["2", "0", "4"]
    assert linear_layers(net) == ["4"]
    assert editable_layers(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 1))) == ["1", "0", "2"]


def test_the_end_of_a_way_around_comes_later() -> None:
    vit = build("vit", input_shape=(1, 8, 8), classes=10, seed=0)
    first = editable_layers(vit)
    assert first[0] == "blocks.5.fc1"
    assert first.index("blocks.5.fc2") > first.index("blocks.0.fc1")
    assert first[-2:] == ["patches", "head"]


def test_a_net_without_any() -> None:
    with pytest.raises(ValueError, match="no trainable linear layer, embedding or convolution"):
        editable_layers(nn.Conv1d(1, 2, 3))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 5),
        nn.Conv2d(3, 5, 3),
        nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
        nn.Conv2d(3, 5, (4, 3), padding="same"),
        nn.Conv2d(3, 5, 2, padding="valid"),
    ],
)
def test_a_layer_is_its_matrix(layer: nn.Linear | nn.Conv2d) -> None:
    inputs = torch.randn(2, 3, 7, 6)
    assert layer.bias is not None
    expected = rows_answered(layer, layer(inputs))
    assert torch.allclose(rows_fed(layer, inputs) @ layer.weight.flatten(1).T + layer.bias, expected, atol=1e-5)
