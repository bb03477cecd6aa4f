"""WAFFLE and FedTracker: what they claim of their own models and of strangers', and how they get there."""

import copy
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import federations
import numpy as np
import pytest
import torch
from federations import SECRET, digits, simulate
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SuspectError
from tramark.fleet.layout import Layout
from tramark.fleet.scratch import loaded
from tramark.keys.pictures import Patterns, WafflePatterns
from tramark.keys.sources import Source, Tokens, Vectors
from tramark.lab.methods import FedAvg, Method, Scene, Verifiable
from tramark.lab.methods.base import Declared
from tramark.lab.methods.fedtracker import FedTracker, Projection, project
from tramark.lab.methods.fingerprints import Carrier, Fingerprints, far_apart
from tramark.lab.methods.taught import ClassQuestions, Rehearsal
from tramark.lab.methods.waffle import Waffle
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining
from tramark.lab.simulation.run import Settings, run
from tramark.lab.simulation.simulator import Simulation
from tramark.suspects.module import ModuleSuspect
from tramark.vault.packing import pack, unpack

CLIENTS = tuple(f"client-{i}" for i in range(5))


def scene(source: Source | None = None, classes: int = 10, **options: Any) -> Scene:
    return federations.scene(source or Patterns((1, 8, 8)), clients=CLIENTS, classes=classes, **options)


def simulation(method: Method) -> Simulation:
    return simulate(method, LocalTraining(epochs=2, batch_size=32), samples=None, evaluation_samples=200)


def mlp(seed: int = 0) -> nn.Module:
    return build("mlp", input_shape=(1, 8, 8), classes=10, seed=seed)


def models(method: Method) -> Iterator[tuple[str, nn.Module]]:
    for client in method.fleet.clients:
        with loaded(method.model, method.fleet, method.fleet.weights(client)) as model:
            yield client, model


def trained(state: dict[str, Tensor], seed: int, size: float = 0.02) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: t + size * torch.randn(t.shape, generator=generator) for name, t in state.items()}


def play(method: Method, rounds: int) -> None:
    for _ in range(rounds):
        outgoing = method.dispatch().items()
        method.collect({c: trained(s, method.round * 10 + i) for i, (c, s) in enumerate(outgoing)})


# The questions, and when a model is claimed.


@pytest.mark.parametrize(("classes", "triggers"), [(10, 100), (3, 100), (2, 7), (100, 100), (200, 100)])
def test_triggers_are_spread_evenly_over_the_classes(classes: int, triggers: int) -> None:
    questions = ClassQuestions(Vectors(6), SECRET, classes, triggers)
    counts = torch.bincount(questions.labels)
    assert len(questions.trained) == len(questions.held_out) == len(questions.labels) == triggers
    assert len(counts) == min(classes, triggers)
    assert counts.max() - counts.min() <= 1
    assert not (questions.trained[:, None] == questions.held_out[None]).all(-1).any()


def test_images_are_asked_wafflepatterns_and_all_else_the_scenes_own_questions() -> None:
    source = ClassQuestions.of(scene(Patterns((3, 16, 16), mean=(0.1,) * 3, std=(0.2,) * 3))).source
    assert source == WafflePatterns((3, 16, 16), mean=(0.1,) * 3, std=(0.2,) * 3)
    for own in (Vectors(9), Tokens(12, vocabulary=50)):
        assert ClassQuestions.of(scene(own)).source is own


@settings(deadline=None, max_examples=100)
@given(st.integers(8, 40), st.floats(0.01, 20), st.integers(0, 2**31))
def test_no_stranger_is_claimed_with_more_than_the_probability_allowed(count: int, evenness: float, seed: int) -> None:
    """A stranger says class c to any question with probability q_c: the exact tail, for even and for lopsided q."""
    needed = ClassQuestions(Vectors(2), SECRET, count).needed
    assert needed is not None
    tail = np.ones(1)
    for q in np.random.default_rng(seed).dirichlet(np.full(count, evenness)):
        tail = np.append(tail * (1 - q), 0) + np.append(0, tail * q)
    assert tail[needed:].sum() <= 1e-6 * (1 + 1e-9)


def test_too_few_questions_give_no_bound_but_an_accuracy() -> None:
    assert [ClassQuestions(Vectors(2), SECRET, classes).needed for classes in (2, 7, 8, 10)] == [None, None, 8, 8]
    two = ClassQuestions(Vectors(2), SECRET, 2)
    right = two.labels.clone()
    assert two.claim(right)
    right[:21] = 1
    assert not two.claim(right)


def test_questions_count_and_not_their_variants() -> None:
    questions = ClassQuestions(WafflePatterns((1, 12, 12)), SECRET, 10)
    seven = torch.where(questions.labels < 7, questions.labels, 0)
    assert questions.accuracy(seven) == 0.7
    assert not questions.claim(seven)
    eight = torch.where(questions.labels < 8, questions.labels, 0)
    eight[torch.arange(100) % 10 > 5] = 9  # of each question's ten variants, four are answered wrong
    assert questions.accuracy(eight) < 0.7
    assert questions.claim(eight)


def test_rehearsal_stops_when_it_may() -> None:
    inputs, labels = torch.eye(8).repeat(4, 1), torch.arange(8).repeat(4)
    torch.manual_seed(0)
    net = nn.Linear(8, 8)

    def rehearse(model: nn.Module, **options: Any) -> int:
        return Rehearsal(rate=0.5, **options)(model, inputs, labels, generator=torch.Generator().manual_seed(0))

    once = rehearse(net, goal=1.0)
    assert 0 < once < 100
    assert rehearse(net, goal=1.0) == 0
    assert rehearse(net, goal=1.0, least=3) == 3
    assert rehearse(nn.Linear(8, 8), goal=1.0, passes=2) == 2


def test_rehearsal_doubles_its_rate_until_it_arrives() -> None:
    inputs, labels = torch.eye(8), torch.arange(8)
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    slow = Rehearsal(rate=1e-3, doubling=1000)
    fast = Rehearsal(rate=1e-3, doubling=5)
    passes = [r(copy.deepcopy(net), inputs, labels, generator=torch.Generator()) for r in (slow, fast)]
    assert passes[0] == 100
    assert passes[1] < 100


@pytest.mark.parametrize("statistics", [False, True])
def test_batch_norm_follows_the_questions_only_if_asked(statistics: bool) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    before = {name: tensor.clone() for name, tensor in net[1].named_buffers()}
    rehearsal = Rehearsal(rate=0.1, least=1, passes=1, statistics=statistics, batch_size=3)
    rehearsal(net, torch.randn(7, 4), torch.arange(7) % 2, generator=torch.Generator())
    assert all(torch.equal(before[n], t) for n, t in net[1].named_buffers()) is not statistics
    assert not net[1].training


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"goal": 1.5}, {"batch_size": 0}, {"least": 9, "passes": 8}])
def test_a_rehearsal_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be positive|share of right answers"):
        Rehearsal(**({"rate": 0.1} | wrong))


# WAFFLE.


def test_waffle_marks_everybodys_model_alike_and_claims_no_strangers() -> None:
    server = Waffle.make(mlp(), scene())
    plain = FedAvg(mlp(), CLIENTS)
    federation, other = simulation(server), simulation(plain)
    for _ in range(4):
        line = federation.step()
        other.step()
        assert line["owned"] == 1.0
        assert line["vr"] is None
        model = next(models(server))[1]
        assert server.questions.accuracy(server.questions.ask(model, "train")) >= 0.98
    assert line["ma"] > 0.7
    assert server.fleet.region is None
    finding = server.verify(model)
    assert finding.accused == ()
    assert finding.queries == 100
    assert finding.scores == dict.fromkeys(CLIENTS, server.confidence(model, CLIENTS[0]))
    assert server.verify(ModuleSuspect(model, digits().prepare)) == finding
    for _, stranger in models(plain):
        assert not server.verify(stranger).owned
    assert not server.verify(mlp(seed=5)).owned


# FedTracker's projection.

vectors = st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4).map(
    lambda v: torch.tensor(v, dtype=torch.float64)
)


@settings(deadline=None, max_examples=60)
@given(vectors, vectors, st.sampled_from([0.0, 0.5]), st.sampled_from([1e-3, 0.1]))
def test_the_projection_solves_gems_programme(gradient: Tensor, memory: Tensor, margin: float, ridge: float) -> None:
    found = project(gradient, memory, margin=margin, ridge=ridge)
    g, m = gradient.numpy(), memory.numpy()
    if g @ m >= 0:
        assert torch.equal(found, gradient)
        return
    # The dual has a single variable: a numeric search over the half-line that the margin leaves.
    dual = minimize_scalar(
        lambda v: 0.5 * (m @ m + ridge) * v**2 + (g @ m) * v,
        bounds=(margin, margin + -(g @ m) / (m @ m + ridge) + 1),
        method="bounded",
        options={"xatol": 1e-10},
    )
    np.testing.assert_allclose(found.numpy(), g + dual.x * m, atol=1e-4)


def test_without_margin_and_ridge_it_is_the_nearest_gradient_that_does_not_go_against_the_memory() -> None:
    generator = torch.Generator().manual_seed(0)
    turned = 0
    for _ in range(10):
        gradient, memory = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        g, m = gradient.numpy(), memory.numpy()
        found = project(gradient, memory, margin=0.0, ridge=0.0)
        primal = minimize(
            lambda x, g=g: 0.5 * ((x - g) ** 2).sum(),
            np.zeros(3),
            constraints={"type": "ineq", "fun": lambda x, m=m: x @ m},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(found.numpy(), primal.x, atol=1e-5)
        turned += not torch.equal(found, gradient)
    assert 2 <= turned <= 8


@pytest.mark.parametrize("projection", ["published", "reversed", "off"])
def test_a_round_is_the_average_then_a_projected_step_then_fingerprints(projection: Projection) -> None:
    """Against a naive round: plain averages of state dicts, autograd, and the programme solved tensor by tensor."""
    server = FedTracker.make(
        mlp(), scene(projection=projection, passes=1, batch_size=1000, rate=0.1, clip=float("inf"), bits=64)
    )
    play(server, 1)
    previous, memory = copy.deepcopy(server.fleet.state()), server.memory.clone()
    returned = [trained(state, seed) for seed, state in enumerate(server.dispatch().values())]
    server.collect(dict(zip(CLIENTS, returned, strict=True)), samples=dict.fromkeys(CLIENTS, 2.0))

    average = {name: torch.stack([state[name].double() for state in returned]).mean(0) for name in returned[0]}
    net = mlp()
    net.load_state_dict(average)
    questions = server.questions
    F.cross_entropy(net(questions.source.prepare(questions.trained)), questions.labels).backward()
    turned = 0
    for name, weight in net.named_parameters():
        slot = server.fleet.layout.slots[name]
        m = slot.of(memory).double() + average[name] - previous[name]
        torch.testing.assert_close(slot.of(server.memory).double(), m, atol=1e-5, rtol=1e-4)
        m = -m if projection == "reversed" else m
        assert weight.grad is not None
        g = weight.grad.double()
        if projection != "off" and (along := (g * m).sum()) < 0:
            turned += 1
            g = g + max(0.5, float(-along / ((m * m).sum() + 1e-3))) * m
        torch.testing.assert_close(slot.of(server.fleet.base).double(), average[name] - 0.1 * g, atol=1e-4, rtol=1e-3)
    assert (turned > 0) == (projection != "off")


def test_reversed_steps_never_go_against_the_memory_and_published_ones_do() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        gradient, memory = torch.randn(2, 50, generator=generator)
        step = -project(gradient, -memory)
        assert step @ memory >= -1e-5
        assert -project(gradient, memory) @ memory <= 1e-5


# FedTracker's fingerprints.


def smallest_distance(rows: Tensor) -> int:
    return min(int((one != other).sum()) for one, other in combinations(rows, 2))


@pytest.mark.parametrize(("clients", "bits"), [(5, 64), (10, 128), (30, 128)])
def test_the_genetic_search_beats_random_bits(clients: int, bits: int) -> None:
    generator = torch.Generator().manual_seed(1)
    found = [smallest_distance(far_apart(clients, bits, generator=generator)) for _ in range(3)]
    random = [smallest_distance(torch.randint(2, (clients, bits), generator=generator) * 2.0 - 1) for _ in range(30)]
    assert min(found) > np.mean(random)
    assert np.mean(found) > np.mean(random) + np.std(random)


def test_one_client_has_bits_too() -> None:
    assert far_apart(1, 16, generator=torch.Generator().manual_seed(0)).abs().eq(1).all()


@pytest.mark.parametrize(("centre", "scale", "steps"), [(1.0, 0.05, 60), (0.0, 0.003, 6)])
def test_fingerprints_are_pressed_until_they_are_told_apart(centre: float, scale: float, steps: int) -> None:
    """Norm scales, near one, take the published rate; mean kernels, near zero, must not be overshot."""
    generator = torch.Generator().manual_seed(0)
    bits = far_apart(6, 64, generator=generator)
    prints = Fingerprints.make(SECRET, list("abcdef"), bits, 400, 0.5)
    numbers = centre + scale * torch.randn(400, generator=generator)
    change = prints.press(numbers, rate=5e-3, steps=steps, similarity=0.85)
    alike = prints.similarities(numbers + change)
    assert (alike.argmax(1) == torch.arange(6)).all()
    assert alike.diagonal().min() >= 0.85
    again = prints.press(numbers + change[0], rate=5e-3, steps=steps, similarity=0.85)
    assert not again[0].any()
    # No more than twice the length of the shortest change that gives all bits their margin.
    lacking = 0.5 * bits - torch.einsum("cbk,k->cb", prints.keys, numbers)
    least = torch.einsum("ckb,cb->ck", torch.linalg.pinv(prints.keys), lacking)
    assert (change.norm(dim=1) <= 2 * least.norm(dim=1)).all()


def test_the_keys_are_standard_normal_and_each_clients_own() -> None:
    keys = Fingerprints.make(SECRET, ["a", "b"], torch.ones(2, 64), 500, 0.5).keys
    assert abs(float(keys.mean())) < 0.02
    assert abs(float(keys.std()) - 1) < 0.02
    assert abs(float((keys[0] * keys[1]).mean())) < 0.03
    assert float(keys.abs().max()) < 6


class Normed(nn.Sequential):
    def __init__(self, *widths: int) -> None:
        super().__init__(*(layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.BatchNorm1d(b))))


@pytest.mark.parametrize(
    ("net", "names", "size"),
    [
        (Normed(8, 64, 64, 64, 64, 64), ("5.weight", "7.weight", "9.weight"), 192),
        (Normed(8, 48, 48, 48, 48), ("1.weight", "3.weight", "5.weight", "7.weight"), 192),
        (build("cnn", input_shape=(1, 8, 8), classes=10), ("conv2.weight",), 800),
        (mlp(), ("fc1.weight", "fc2.weight"), 192),
        (mlp(), ("fc1.weight", "fc2.weight", "fc3.weight"), 320),
        (build("text", input_shape=(9,), classes=4, vocabulary=20), ("fc1.weight", "fc2.weight"), 192),
        (Normed(160, 100, 10, 10), ("0.weight", "2.weight"), 260),
    ],
)
def test_the_carrier_is_norms_or_else_kernels_or_else_hidden_layers(
    net: nn.Module, names: tuple[str, ...], size: int
) -> None:
    layout = Layout.of(net)
    carrier = Carrier.of(net, layout, bits=96 if size == 192 else 128)
    assert carrier.names == names
    flat = layout.flatten(net.state_dict())
    numbers = carrier.read([slot.of(flat) for slot in carrier.slots])
    assert len(numbers) == carrier.size == size
    change = torch.randn(size)
    places = carrier.places
    places.put(flat, places.take(flat) + carrier.spread(change))
    moved = carrier.read([slot.of(flat) for slot in carrier.slots])
    torch.testing.assert_close(moved, numbers + change)
    assert places.tensors(layout) == set(names)


def test_a_net_too_small_for_its_bits_is_refused_with_what_would_fit() -> None:
    net = nn.Linear(16, 3)
    with pytest.raises(ValueError, match="ask for 16 bits at most"):
        FedTracker.make(net, scene(Vectors(16), 3))
    assert FedTracker.make(net, scene(Vectors(16), 3, bits=16)).carrier.size == 16


@pytest.mark.parametrize("wrong", [{"projection": "sideways"}, {"similarity": 1.2}, {"bits": 0}])
def test_parameters_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sideways|similarity"):
        FedTracker.make(mlp(), scene(**wrong))


@pytest.mark.parametrize("projection", ["published", "reversed"])
def test_fedtracker_traces_its_clients_and_accuses_no_strangers(projection: Projection) -> None:
    server = FedTracker.make(mlp(), scene(projection=projection))
    federation, returned = simulation(server), dict[str, dict[str, Tensor]]()
    for _ in range(4):
        line = federation.step(keep=returned.__setitem__)
        for _, model in models(server):
            assert server.questions.accuracy(server.questions.ask(model, "train")) >= 0.9
    assert line["vr"] >= 0.9
    assert line["owned"] == 1.0
    assert line["confidence"] > 0.9
    assert line["ma"] > 0.3
    for client, model in models(server):
        scores = server.verify(model).scores
        assert scores[client] == max(scores.values()) >= 0.85
    # What clients had after their own training, from the round before: the fingerprint is still there.
    for client, state in returned.items():
        model.load_state_dict(state)
        scores = server.verify(model).scores
        assert scores[client] == max(scores.values())
    assert server.fleet.shared == frozenset(server.fleet.layout.order) - set(server.carrier.names)
    stranger = mlp(seed=3)
    finding = server.verify(stranger)
    assert not finding.owned
    assert finding.accused == ()
    assert abs(server.confidence(stranger, CLIENTS[0]) - 0.5) < 0.25


def test_fingerprints_are_not_read_from_what_only_answers_or_is_built_otherwise() -> None:
    server = FedTracker.make(mlp(), scene())
    with pytest.raises(SuspectError, match="a module is wanted"):
        server.verify(ModuleSuspect(mlp(), server.questions.source.prepare))
    with pytest.raises(SuspectError, match="another architecture"):
        server.verify(build("cnn", input_shape=(1, 8, 8), classes=10))


# Both.


def make(method: str, net: nn.Module, what: Scene) -> Waffle | FedTracker:
    return Waffle.make(net, what) if method == "waffle" else FedTracker.make(net, what)


@pytest.mark.parametrize("method", ["waffle", "fedtracker"])
@pytest.mark.parametrize("kind", ["table", "text", "few classes"])
def test_tables_tokens_and_few_classes(method: str, kind: str) -> None:
    classes = 2 if kind == "few classes" else 10
    name, shape = ("text", (20,)) if kind == "text" else ("mlp", (30,))
    net = build(name, input_shape=shape, classes=classes, vocabulary=200, seed=0)
    # Two questions are soon answered, but by a hair, which fingerprints would undo.
    firmly: dict[str, Any] = {"least": 10, "rate": 5e-3}
    options = firmly if method == "fedtracker" and kind == "few classes" else {}
    server = make(method, net, scene(Tokens(20, 200) if kind == "text" else Vectors(30), classes, **options))
    play(server, 2)
    for client, model in models(server):
        finding = server.verify(model)
        assert finding.owned
        assert finding.accused == ((client,) if method == "fedtracker" else ())


@pytest.mark.parametrize("method", ["waffle", "fedtracker"])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_resuming_is_bitwise(method: str, stop: int) -> None:
    options: dict[str, Any] = {"passes": 15} if method == "fedtracker" else {}
    whole, first, second = (make(method, mlp(), scene(**options)) for _ in range(3))
    play(whole, 4)
    play(first, stop)
    second.load_state_dict(unpack(pack(first.state_dict())))
    play(second, 4 - stop)
    assert second.round == 4
    for client in CLIENTS:
        one, other = whole.dispatch()[client], second.dispatch()[client]
        assert all(torch.equal(one[name], other[name]) for name in one)
    model = next(models(whole))[1]
    assert whole.verify(model) == second.verify(model)
    if isinstance(whole, FedTracker) and isinstance(second, FedTracker):
        assert torch.equal(whole.memory, second.memory)


@pytest.mark.parametrize("method", ["waffle", "fedtracker"])
def test_a_run_by_name_goes_on_where_it_stopped(method: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 3, "samples_per_client": 120, "warmup": 0}
    whole = run(Settings(**options, method=method, rounds=3, local_epochs=2), tmp_path / "whole")
    run(Settings(**options, method=method, rounds=2, local_epochs=2), tmp_path / "parts")
    resumed = run(Settings(**options, method=method, rounds=3, local_epochs=2), tmp_path / "parts", resume=True)
    assert whole["per_client"] == resumed["per_client"]
    assert whole["vr"] == (1.0 if method == "fedtracker" else None)


@pytest.mark.parametrize("method", ["waffle", "fedtracker"])
def test_they_are_what_they_say(method: str) -> None:
    server = make(method, mlp(), scene(triggers=50))
    assert isinstance(server, Verifiable)
    traces = method == "fedtracker"
    assert server.declared == Declared("white-box" if traces else "black-box", names_clients=traces)
    assert "triggers=50" in repr(server)
    assert SECRET.hex() not in repr(server)
    assert repr(SECRET) not in repr(server)
