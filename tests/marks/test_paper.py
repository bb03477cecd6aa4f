"""The presets `paper` and `released` against plain loops over whole models: the paper's text, and its authors' code."""

import copy
from collections.abc import Callable

import pytest
import torch
from federations import ring
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import TraMark
from tramark.fleet.layout import Layout
from tramark.fleet.region import smallest_weights
from tramark.keys.keyring import Keyring
from tramark.lab.models import build
from tramark.marks.gradient import draws
from tramark.marks.presets import preset_named

ROUNDS, WARM_UP, RATIO, RATE = 6, 3, 0.05, 0.02
SAMPLES = {"a": 30.0, "b": 10.0, "c": 20.0}
Models = dict[str, nn.Module]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Dropout(), nn.Linear(40, 10))


def labels() -> Keyring:
    return ring(clients=("a", "b", "c"), assignment="label", train_variants=50, held_out_variants=2)


def trained(model: nn.Module, round: int, client: str) -> dict[str, Tensor]:
    """A client's training: the same small move, whatever it was sent."""
    generator = torch.Generator().manual_seed(100 * round + ord(client))
    return {n: t + 0.02 * torch.randn(t.shape, generator=generator) for n, t in model.state_dict().items()}


def flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in state.values()])


def load(model: nn.Module, weights: Tensor) -> None:
    sizes = [p.numel() for p in model.parameters()]
    for parameter, piece in zip(model.parameters(), weights.split(sizes), strict=True):
        parameter.data.copy_(piece.view_as(parameter))


def papers(keyring: Keyring) -> Models:
    """Algorithms 1 and 2 of the text: T rounds, of which αT are warm-up."""
    models = {client: net() for client in keyring.clients}
    mask = torch.zeros(0)
    for t in range(ROUNDS):
        sent = {c: flat(m.state_dict()) for c, m in models.items()}
        if t == WARM_UP:
            size = sent["a"].abs()
            mask = torch.ones_like(size)
            mask[size.topk(len(size) - int(RATIO * len(size))).indices] = 0
        deltas = {c: flat(trained(m, t, c)) - sent[c] for c, m in models.items()}
        mean = torch.stack(list(deltas.values())).mean(0)
        for client, model in models.items():
            if t < WARM_UP:
                load(model, sent[client] + mean)
                continue
            load(model, sent[client] + (1 - mask) * mean + mask * deltas[client])
            inputs = keyring.inputs(keyring.key(client), "train").flatten(0, 1)
            answers = torch.full((len(inputs),), keyring.clients.index(client))
            model.eval()
            for _ in range(5):
                loss = F.cross_entropy(model(inputs), answers)
                gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
                load(model, flat(model.state_dict()) - RATE * gradient * mask)
    return models


def authors(keyring: Keyring) -> Models:
    """What the authors' code does in rounds 1 … T: masks from client 0's own model of the round before the first."""
    models = {client: net() for client in keyring.clients}
    kept: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for round in range(1, ROUNDS + 1):
        local = {client: trained(model, round - 1, client) for client, model in models.items()}
        if round < WARM_UP:
            kept = local["a"]
        if round == WARM_UP:
            for name, weight in kept.items():
                largest = weight.flatten().abs().topk(int(weight.numel() * (1 - RATIO))).indices
                mask = torch.ones(weight.numel())
                mask[largest] = 0
                masks[name] = mask.view_as(weight)
        total = sum(SAMPLES.values())
        mean = {n: sum((SAMPLES[c] * local[c][n] for c in local), torch.zeros(())) / total for n in local["a"]}
        for client, model in models.items():
            if round < WARM_UP:
                model.load_state_dict(mean)
                continue
            model.load_state_dict({n: (1 - masks[n]) * mean[n] + masks[n] * local[client][n] for n in mean})
            inputs = keyring.inputs(keyring.key(client), "train").flatten(0, 1)
            answers = torch.full((len(inputs),), keyring.clients.index(client))
            optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.0)
            random = draws(keyring, client, round - WARM_UP)
            model.zero_grad()
            model.train()
            torch.manual_seed(int(torch.randint(2**62, (), generator=random)))
            for _ in range(5):
                for batch in torch.randperm(len(inputs), generator=random).split(32):
                    F.cross_entropy(model(inputs[batch]), answers[batch]).backward()
                    for name, parameter in model.named_parameters():
                        assert parameter.grad is not None
                        parameter.grad.mul_(masks[name])
                    optimiser.step()
    return models


@pytest.mark.parametrize(
    ("preset", "naive", "samples", "first"),
    [("paper", papers, None, WARM_UP + 1), ("released", authors, SAMPLES, WARM_UP)],
)
def test_a_preset_is_its_source(
    preset: str, naive: Callable[[Keyring], Models], samples: dict[str, float] | None, first: int
) -> None:
    keyring = labels()
    injection = preset_named(preset, ratio=RATIO, rate=RATE)
    server = TraMark(net(), keyring, warmup_rounds=WARM_UP, injection=injection)
    scratch = net()
    for round in range(ROUNDS):
        incoming = {}
        for client, state in server.dispatch().items():
            scratch.load_state_dict(state)
            incoming[client] = copy.deepcopy(trained(scratch, round, client))
        report = server.collect(incoming, samples)
        assert report.marked == (server.round >= first)
        assert report.begins_after == (None if report.marked else first)
    with torch.random.fork_rng(devices=[]):
        expected = naive(keyring)
    for client, state in server.dispatch().items():
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, expected[client].state_dict()[name], atol=2e-6, rtol=1e-4)
    # The steps matter: without them, the models would be far from this.
    moved = flat(server.dispatch()["a"]) - flat(server.dispatch()["b"])
    assert float(moved.abs().max()) > 0.05


def test_the_released_region_of_the_papers_net() -> None:
    """At least one weight of every tensor, the last bias included."""
    model = build("cnn", input_shape=(1, 28, 28), classes=10, seed=0)
    layout = Layout.of(model)
    region = smallest_weights(layout.flatten(model.state_dict()), layout, 0.01, per_tensor=True)
    assert region.size == 16_638
    assert region.tensors(layout) == set(layout.tensors)
    assert smallest_weights(layout.flatten(model.state_dict()), layout, 0.01).size == 16_633
