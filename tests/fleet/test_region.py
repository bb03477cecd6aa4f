"""A region takes out exactly what it puts in, and leaves everything else alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tramark.fleet.layout import Layout
from tramark.fleet.region import Directions, Places, Region, Subspace, load_region, smallest_weights


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(12, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def subspace(layout: Layout, seed: int) -> Subspace:
    generator = torch.Generator().manual_seed(seed)
    return Subspace(
        tuple(
            Directions(layout.slots[name], torch.linalg.qr(torch.randn(inputs, rank, generator=generator)).Q)
            for name, inputs, rank in (("0.weight", 12, 4), ("2.weight", 8, 3))
        )
    )


def regions(seed: int) -> list[tuple[Region, Tensor]]:
    model = net()
    layout = Layout.of(model)
    weights = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed))
    return [
        (smallest_weights(weights, layout, 0.1), weights),
        (smallest_weights(weights, layout, 0.1, per_tensor=True), weights),
        (subspace(layout, seed), weights),
    ]


@given(st.integers(0, 2**31), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_take_and_put(seed: int, kind: int) -> None:
    region, weights = regions(seed)[kind]
    mark = torch.randn(region.size, generator=torch.Generator().manual_seed(seed + 1))
    changed = weights.clone()
    region.put(changed, mark)
    torch.testing.assert_close(region.take(changed), mark, atol=1e-5, rtol=1e-5)
    region.put(changed, region.take(weights))
    torch.testing.assert_close(changed, weights, atol=1e-5, rtol=1e-5)
    # Whatever the mark, what lies outside the region is the same: with both marks taken off, the models are one.
    one, other = weights.clone(), weights.clone()
    region.put(one, mark)
    region.put(other, -mark)
    for model in (one, other):
        region.put(model, torch.zeros(region.size))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@given(st.integers(0, 2**31), st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_smallest_weights_are_the_smallest(seed: int, ratio: float) -> None:
    layout = Layout.of(net())
    weights = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed))
    chosen = smallest_weights(weights, layout, ratio).indices
    assert len(chosen) == int(ratio * layout.size + 1e-9)
    rest = torch.ones(layout.size, dtype=torch.bool)
    rest[chosen] = False
    assert weights[chosen].abs().max() <= weights[rest].abs().min()
    per_tensor = smallest_weights(weights, layout, ratio, per_tensor=True).indices
    assert len(per_tensor) == len(per_tensor.unique())
    for slot in layout.tensors.values():
        inside = per_tensor[(per_tensor >= slot.start) & (per_tensor < slot.stop)]
        numel = slot.shape.numel()
        assert len(inside) == numel - int((1 - ratio) * numel) >= 1
        others = [place for place in range(slot.start, slot.stop) if place not in inside.tolist()]
        assert not others or weights[inside].abs().max() <= weights[others].abs().min()


def test_ties_go_to_the_earlier_place() -> None:
    layout = Layout.of(nn.Linear(9, 1, bias=False))
    assert smallest_weights(torch.ones(9), layout, 0.5).indices.tolist() == [0, 1, 2, 3]
    assert smallest_weights(torch.tensor([2.0, 1, 1, -1, 3, 1, 0, 1, 1]), layout, 0.5).indices.tolist() == [1, 2, 3, 6]


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.1, 1.5])
def test_ratios_outside_are_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        smallest_weights(torch.ones(9), Layout.of(nn.Linear(9, 1, bias=False)), ratio)


def test_a_ratio_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for a mark"):
        smallest_weights(torch.ones(9), Layout.of(nn.Linear(9, 1, bias=False)), 0.01)


def test_regions_survive_a_checkpoint() -> None:
    layout = Layout.of(net())
    for region, weights in regions(5):
        again = load_region(region.state_dict(), layout)
        assert type(again) is type(region)
        assert torch.equal(again.take(weights), region.take(weights))


def test_buffers_and_frozen_parameters_are_no_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[2].bias.requires_grad_(False)
    layout = Layout.of(model)
    assert layout.size == 12 + 4 + 4 + 4 + 8
    assert set(layout.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked", "2.bias"}
    with pytest.raises(ValueError, match="nothing to mark"):
        Layout.of(nn.ReLU())


def test_places_are_places() -> None:
    assert isinstance(regions(0)[0][0], Places)
