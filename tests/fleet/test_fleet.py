"""Folding a round in must equal the paper's algorithm, written down naively, on any model."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tramark.errors import UpdateError
from tramark.fleet.fleet import Fleet, Outgoing
from tramark.fleet.region import Directions, Places, Subspace, smallest_weights

CLIENTS = ["a", "b", "c"]


class Tied(nn.Module):
    """Two names for one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)
        self.two.weight = self.one.weight


class Counting(nn.Module):
    """Buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("precise", torch.rand(2, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(2**60 + 1))
        self.register_buffer("flag", torch.tensor([True, False]))


MODELS: list[Callable[[], nn.Module]] = [
    lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
    lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)),
    Tied,
    Counting,
    lambda: nn.Linear(6, 5).double(),
    lambda: nn.Linear(6, 5).bfloat16(),
]


def perturbed(state: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    noise: dict[int, Tensor] = {}
    out = {}
    for name, tensor in state.items():
        if tensor.is_floating_point():
            # Names of one tensor must go on sharing it.
            key = id(tensor)
            noise.setdefault(key, (torch.randn(tensor.shape, generator=generator) * 0.1).to(tensor.dtype))
            out[name] = tensor + noise[key]
        elif tensor.dtype == torch.int64:
            out[name] = tensor + 16
        else:
            out[name] = tensor.clone()
    return out


@given(st.integers(0, len(MODELS) - 1), st.integers(0, 2**31), st.lists(st.integers(1, 500), min_size=3, max_size=3))
@settings(max_examples=60, deadline=None)
def test_aggregation_equals_the_naive_version(which: int, seed: int, sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[which]()
    fleet = Fleet(model, CLIENTS)
    region = smallest_weights(fleet.base, fleet.layout, 0.2)
    fleet.settle(region, torch.randn(3, region.size, generator=generator, dtype=fleet.base.dtype))
    sent = {c: fleet.state(c) for c in CLIENTS}
    returned = {c: perturbed(sent[c], generator) for c in CLIENTS}
    models = {c: fleet.weights(c) for c in CLIENTS}

    # The paper, line by line: θ_i + M_m ⊙ Σ w Δ / Σ w + M_w ⊙ Δ_i.
    inside = torch.zeros(fleet.layout.size, dtype=torch.bool)
    inside[region.indices] = True
    deltas = {c: fleet.layout.flatten(returned[c]) - fleet.layout.flatten(sent[c]) for c in CLIENTS}
    mean = sum(w * deltas[c].double() for c, w in zip(CLIENTS, sizes, strict=True)) / sum(sizes)
    expected = {c: models[c] + torch.where(inside, deltas[c].double(), mean) for c in CLIENTS}

    aggregation = fleet.begin()
    for client, size in zip(CLIENTS, sizes, strict=True):
        aggregation.add(client, returned[client], size)
    aggregation.finish()
    for client in CLIENTS:
        torch.testing.assert_close(fleet.weights(client).double(), expected[client], atol=1e-6, rtol=1e-5)
        model.load_state_dict(fleet.state(client))


@pytest.mark.parametrize("make", MODELS, ids=range(len(MODELS)))
def test_state_dicts_look_like_the_models_own(make: Callable[[], nn.Module]) -> None:
    model = make()
    own, sent = model.state_dict(), Fleet(model, CLIENTS).state("a")
    assert list(sent) == list(own)
    for name, tensor in own.items():
        assert (sent[name].dtype, sent[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(sent[name], tensor)


@given(st.permutations(range(12)))
@settings(max_examples=20, deadline=None)
def test_any_order_of_arrival_gives_the_same_bits(order: list[int]) -> None:
    torch.manual_seed(0)
    names = [f"c{i}" for i in range(12)]
    model = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.Linear(20, 5))
    first, second = Fleet(model, names), Fleet(model, names)
    returned = [perturbed(first.state(n), torch.Generator().manual_seed(i)) for i, n in enumerate(names)]
    for fleet, arrival in ((first, range(12)), (second, order)):
        aggregation = fleet.begin()
        for i in arrival:
            aggregation.add(names[i], returned[i], 10 + i)
        aggregation.finish()
    assert torch.equal(first.base, second.base)


def test_buffers_are_exact() -> None:
    fleet = Fleet(Counting(), CLIENTS)
    before = fleet.state("a")
    aggregation = fleet.begin()
    for client, size in zip(CLIENTS, (3, 5, 7), strict=True):
        state = fleet.state(client)
        state["norm.num_batches_tracked"] += 7
        state["count"] += 4
        aggregation.add(client, state, size)
    aggregation.finish()
    after = fleet.state("b")
    assert after["norm.num_batches_tracked"] == 7
    assert after["count"] == 2**60 + 5
    for name in ("precise", "flag", "norm.running_mean", "layer.weight"):
        assert torch.equal(after[name], before[name]), name


def test_marks_in_a_subspace_never_mix() -> None:
    torch.manual_seed(1)
    fleet = Fleet(nn.Linear(8, 4), CLIENTS)
    basis = torch.linalg.qr(torch.randn(8, 2)).Q
    region = Subspace((Directions(fleet.layout.slots["weight"], basis),))
    base = fleet.base.clone()
    fleet.settle(region, 100 * torch.randn(3, region.size))
    aggregation = fleet.begin()
    for client in CLIENTS:
        aggregation.add(client, fleet.state(client))
    aggregation.finish()
    torch.testing.assert_close(fleet.base, base, atol=0, rtol=0)


def test_absent_clients_get_the_new_base_with_their_own_mark() -> None:
    fleet = Fleet(nn.Linear(8, 4), CLIENTS)
    fleet.settle(Places(torch.tensor([0, 3])), torch.tensor([[1.0, 1], [2, 2], [3, 3]]))
    state = fleet.state("a")
    state["weight"] += 1
    aggregation = fleet.begin()
    aggregation.add("a", state)
    aggregation.finish()
    absent = fleet.weights("c")
    assert absent[[0, 3]].tolist() == [3, 3]
    outside = torch.ones(len(absent), dtype=torch.bool)
    outside[[0, 3]] = False
    assert torch.equal(absent[outside], fleet.weights("a")[outside])
    assert fleet.weights("a")[[0, 3]].tolist() == [2, 2]


def spoilt(state: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    match how:
        case "NaN or infinite":
            state["bias"][1] = float("nan")
        case "missing bias":
            del state["bias"]
        case "unexpected extra":
            state["extra"] = torch.zeros(1)
        case "instead of":
            state["bias"] = torch.zeros(9)
    return state


@pytest.mark.parametrize("how", ["NaN or infinite", "missing bias", "unexpected extra", "instead of"])
def test_bad_updates_are_refused_by_name_and_change_nothing(how: str) -> None:
    good, both = Fleet(nn.Linear(4, 2), CLIENTS), Fleet(nn.Linear(4, 2), CLIENTS)
    both.base.copy_(good.base)
    fine = perturbed(good.state("a"), torch.Generator().manual_seed(0))
    for fleet in (good, both):
        aggregation = fleet.begin()
        aggregation.add("a", fine)
        if fleet is both:
            with pytest.raises(UpdateError, match=f"'b' refused.*{how}"):
                aggregation.add("b", spoilt(fleet.state("b"), how))
        aggregation.finish()
    assert torch.equal(good.base, both.base)


def test_strangers_and_repeats_are_refused() -> None:
    aggregation = Fleet(nn.Linear(4, 2), CLIENTS).begin()
    state = aggregation.fleet.state("a")
    aggregation.add("a", state)
    with pytest.raises(UpdateError, match="second update"):
        aggregation.add("a", state)
    with pytest.raises(UpdateError, match="not a client"):
        aggregation.add("mallory", state)
    with pytest.raises(UpdateError, match="positive number"):
        aggregation.add("b", state, float("nan"))


def test_joining_and_leaving() -> None:
    fleet = Fleet(nn.Linear(4, 2), CLIENTS)
    fleet.settle(Places(torch.tensor([1])), torch.tensor([[1.0], [2], [3]]))
    fleet.join("d")
    assert torch.equal(fleet.weights("d"), fleet.base)
    fleet.leave("b")
    assert fleet.weights("c")[1] == 3
    with pytest.raises(KeyError, match="no client 'b'"):
        fleet.weights("b")


def test_outgoing_models_are_made_one_at_a_time() -> None:
    fleet = Fleet(nn.Linear(4, 2), CLIENTS)
    outgoing = Outgoing(fleet, ["a", "c"])
    assert list(outgoing) == ["a", "c"]
    outgoing["a"]["weight"].zero_()
    assert outgoing["a"]["weight"].abs().sum() > 0
    with pytest.raises(KeyError):
        outgoing["b"]
