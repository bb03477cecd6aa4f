"""A search must be able to switch on units that are off, and what the model answers must not change by that."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.marks.lift import SLOPE, Lifting


@pytest.mark.parametrize(
    "activation",
    [F.relu, torch.relu, F.relu6, F.gelu, F.silu, F.mish, F.hardswish, nn.ReLU(), nn.ReLU(inplace=True), nn.GELU()],
    ids=["F.relu", "torch.relu", "relu6", "gelu", "silu", "mish", "hardswish", "ReLU", "ReLU in place", "GELU"],
)
def test_units_that_are_off_pass_gradients_that_would_switch_them_on(activation: Callable[[Tensor], Tensor]) -> None:
    inputs = torch.tensor([-4.0, -3.0, 2.0], requires_grad=True)
    wanted = torch.tensor([1.0, -1.0, 1.0])  # more of the first and the last, less of the second

    def slope(*, lifted: bool) -> tuple[Tensor, Tensor]:
        if lifted:
            with Lifting():
                outputs = activation(inputs * 1)
        else:
            outputs = activation(inputs * 1)
        [found] = torch.autograd.grad(-(outputs * wanted).sum(), inputs)
        return outputs.detach(), found

    (plain, flat), (same, lifted) = slope(lifted=False), slope(lifted=True)
    assert torch.equal(plain, same), "answers do not change"
    torch.testing.assert_close(lifted - flat, torch.tensor([-SLOPE, 0.0, 0.0]))


def test_without_gradients_there_is_nothing_to_lift() -> None:
    inputs = torch.tensor([-1.0, 1.0])
    with torch.no_grad(), Lifting():
        assert torch.relu_(inputs) is inputs
    assert inputs.tolist() == [0.0, 1.0]
