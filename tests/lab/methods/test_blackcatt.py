"""BlackCATT: its codes as codes, its scores as statistics, and its models on a small federation."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from federations import SECRET, scene, simulate
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import mlp, seeded
from torch import Tensor, nn

from tramark.evidence.statistics import NO_ANSWER
from tramark.keys import streams
from tramark.keys.pictures import Patterns
from tramark.keys.sources import Tokens, Vectors
from tramark.lab.methods.blackcatt import (
    BlackCATT,
    biases,
    codeword,
    scores,
    threshold,
    trained_weights,
)
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining
from tramark.lab.simulation.simulator import Simulation
from tramark.suspects.base import Answers
from tramark.vault.packing import pack, unpack

SMALL: dict[str, Any] = {"questions": 100, "steps": 60, "rate": 0.05}
LONG: dict[str, Any] = {"questions": 200, "steps": 80, "rate": 0.05, "peers": 2}
CLIENTS = tuple(f"client-{i}" for i in range(4))


def code(count: int, questions: int, classes: int, secret: bytes = SECRET) -> tuple[Tensor, Tensor]:
    p = biases(secret, questions, classes, 0.1 / classes)
    return p, torch.stack([codeword(secret, f"client-{i}", p) for i in range(count)])


@settings(max_examples=30, deadline=None)
@given(secret=st.binary(min_size=8, max_size=32), classes=st.integers(2, 40))
def test_biases_are_probabilities_above_the_cutoff(secret: bytes, classes: int) -> None:
    cutoff = 0.1 / classes
    p = biases(secret, 50, classes, cutoff)
    torch.testing.assert_close(p.sum(1), torch.ones(50, dtype=torch.float64))
    assert float(p.min()) >= cutoff - 1e-12
    word = codeword(secret, "somebody", p)
    assert int(word.min()) >= 0
    assert int(word.max()) < classes
    assert torch.equal(word, codeword(secret, "somebody", p))


@pytest.mark.parametrize("classes", [2, 10])
def test_biases_have_the_moments_of_a_dirichlet_of_halves(classes: int) -> None:
    count, cutoff = 20_000, 0.1 / classes
    p = biases(SECRET, count, classes, cutoff)
    bare = (p - cutoff) / (1 - classes * cutoff)
    variance = (classes - 1) / (classes**2 * (classes / 2 + 1))
    # Five standard errors; the mean is that of one coordinate, known by symmetry.
    torch.testing.assert_close(
        bare.mean(0), torch.full((classes,), 1 / classes).double(), rtol=0, atol=5 * math.sqrt(variance / count)
    )
    torch.testing.assert_close(bare.var(0), torch.full((classes,), variance).double(), rtol=0.05, atol=0)


def test_labels_come_with_their_biases() -> None:
    p, words = code(4000, 20, 10)
    shares = torch.nn.functional.one_hot(words, 10).double().mean(0)
    error = (p * (1 - p) / 4000).sqrt()
    assert ((shares - p).abs() <= 5 * error).all()


def innocents(answers: Tensor, p: Tensor, count: int, seed: int) -> Tensor:
    """Scores of clients who have nothing to do with the answers."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.stack([torch.multinomial(row, count, replacement=True, generator=generator) for row in p], dim=1)
    return scores(words, answers, p)


@pytest.mark.parametrize("kind", ["uniform", "likeliest", "unlikeliest", "constant"])
def test_an_innocents_score_has_mean_zero_and_variance_one_an_answer(kind: str) -> None:
    p, _ = code(1, 250, 10)
    answers = {
        "uniform": streams.integers(SECRET, "answers", count=250, below=10),
        "likeliest": p.argmax(1),
        "unlikeliest": p.argmin(1),
        "constant": torch.full((250,), 3),
    }[kind]
    found = innocents(answers, p, 20_000, seed=1)
    assert abs(float(found.mean())) < 5 * math.sqrt(250 / 20_000)
    assert float(found.var()) == pytest.approx(250, rel=0.1)
    for error in (1e-1, 1e-2, 1e-3):
        assert float((found >= threshold(250, 0.01, error)).double().mean()) <= error


@given(st.integers(1, 2000), st.floats(1e-4, 0.1), st.floats(1e-9, 0.5))
def test_the_threshold_is_where_bernstein_says(answered: int, cutoff: float, error: float) -> None:
    z = threshold(answered, cutoff, error)
    assert math.exp(-0.5 * z * z / (answered + z / (3 * math.sqrt(cutoff)))) == pytest.approx(error, rel=1e-6)
    assert threshold(answered, cutoff, error / 10) > z


def test_answers_that_are_none_count_nothing() -> None:
    p, words = code(3, 40, 10)
    answers = words[0].clone()
    answers[20:] = NO_ANSWER
    answers[19] = 10
    torch.testing.assert_close(scores(words, answers, p), scores(words[:, :19], answers[:19], p[:19]))


@pytest.mark.parametrize("strategy", ["interleaving", "majority", "minority"])
@pytest.mark.parametrize("colluders", [1, 2, 3])
def test_colluders_are_caught_and_nobody_else(colluders: int, strategy: str) -> None:
    caught = 0
    for trial in range(20):
        secret = SECRET + bytes([trial])
        p, words = code(20, 250, 10, secret)
        theirs = words[:colluders]
        counts = torch.nn.functional.one_hot(theirs, 10).sum(0)
        if strategy == "interleaving":
            choice = streams.integers(secret, "who", count=250, below=colluders)
            answers = theirs.gather(0, choice[None])[0]
        elif strategy == "majority":
            answers = counts.argmax(1)
        else:
            answers = torch.where(counts > 0, counts, 100).argmin(1)
        found = scores(words, answers, p)
        limit = threshold(250, 0.01, 1e-6)
        assert float(found[colluders:].max()) < limit
        caught += bool((found[:colluders] >= limit).any())
    assert caught >= 19


def server(classes: int = 10, **options: Any) -> BlackCATT:
    model = build("mlp", input_shape=(1, 8, 8), classes=classes, seed=0)
    return BlackCATT.make(model, scene(Patterns((1, 8, 8)), clients=CLIENTS, classes=classes, **{**SMALL, **options}))


def federation(rounds: int, **options: Any) -> Simulation:
    """Four clients on digits, three rounds without marks and the others with."""
    made = scene(clients=CLIENTS, warmup=3, **{**LONG, **options})
    method = BlackCATT.make(build("mlp", input_shape=(1, 8, 8), classes=10, seed=0), made)
    simulation = simulate(method, LocalTraining(epochs=4), samples=200)
    while method.round < rounds:
        simulation.step()
    return simulation


@pytest.fixture(scope="module")
def trained() -> Simulation:
    return federation(5)


def method_of(simulation: Simulation) -> BlackCATT:
    assert isinstance(simulation.method, BlackCATT)
    return simulation.method


def model_of(method: BlackCATT, *states: Mapping[str, Tensor]) -> nn.Module:
    """The average of some models."""
    model = copy.deepcopy(method.model)
    model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    return model.eval()


class Silent:
    """A suspect that answers with labels and nothing else."""

    def __init__(self, labels: Sequence[int]) -> None:
        self.labels = torch.tensor(labels)

    def ask(self, raw: Tensor) -> Answers:
        return Answers(self.labels[: len(raw)])


def test_own_models_are_traced_after_local_training_too(trained: Simulation) -> None:
    method = method_of(trained)
    returned = trained.train()
    for client in CLIENTS:
        for state in (method.fleet.state(client), returned[client]):
            found = method.verify(model_of(method, state))
            assert found.accused == (client,)
            assert found.owned
            assert found.queries == 200
        others = [method.confidence(model_of(method, method.fleet.state(o)), client) for o in CLIENTS if o != client]
        assert method.confidence(model_of(method, method.fleet.state(client)), client) > 0.8 > max(others)


def test_a_model_without_marks_is_nobodys(trained: Simulation) -> None:
    method = method_of(trained)
    for state in (
        method.fleet.state(),
        federation(3, trigger_start=0, trigger_steps=0, steps=1, rate=1e-9).method.fleet.state(),
        build("mlp", input_shape=(1, 8, 8), classes=10, seed=7).state_dict(),
    ):
        found = method.verify(model_of(method, state))
        assert found.accused == ()
        assert not found.owned
        assert found.conclusive


def test_an_average_of_two_accuses_one_of_them_and_no_innocent(trained: Simulation) -> None:
    method = method_of(trained)
    for one in range(len(CLIENTS)):
        for other in range(one):
            pair = {CLIENTS[one], CLIENTS[other]}
            found = method.verify(model_of(method, *(method.fleet.state(client) for client in pair)))
            assert found.accused
            assert set(found.accused) <= pair


def test_resuming_equals_going_on() -> None:
    quick = {"questions": 40, "steps": 5, "auxiliary": 40}
    whole = federation(5, **quick)
    stopped = federation(4, **quick)
    state = unpack(pack(method_of(stopped).state_dict()))
    resumed = federation(0, **quick)
    method_of(resumed).load_state_dict(state)
    resumed.step()
    left, right = method_of(whole).state_dict(), method_of(resumed).state_dict()
    assert left["round"] == right["round"] == 5
    assert left["clients"] == right["clients"]
    for part in ("fleet", "triggers"):
        assert left[part].keys() == right[part].keys()
        assert all(torch.equal(left[part][name], right[part][name]) for name in left[part])


def test_starting_from_a_warm_up_equals_warming_up() -> None:
    quick = {"questions": 40, "steps": 5, "auxiliary": 40, "enough": None}
    warm = federation(2, **quick)
    whole, late = federation(4, **quick), federation(0, **quick)
    warm.step()
    late.method.warm_start(warm.method.state_dict())
    late.step()
    assert torch.equal(method_of(late).raw, method_of(whole).raw)
    assert torch.equal(late.method.fleet.marks, whole.method.fleet.marks)


def test_everybody_takes_up_the_mean_update_and_keeps_its_mark() -> None:
    method = server(steps=1, rate=1e-12, trigger_steps=0)
    method.dispatch()
    offsets = torch.randn(method.fleet.marks.shape, generator=torch.Generator().manual_seed(0))
    method.fleet.marks += 0.01 * offsets
    before, base = method.fleet.marks.clone(), method.fleet.base.clone()
    incoming = {
        client: {name: tensor + 0.1 * i for name, tensor in state.items()}
        for i, (client, state) in enumerate(method.dispatch(CLIENTS[:3]).items())
    }
    report = method.collect(incoming, samples={"client-0": 1.0, "client-1": 1.0, "client-2": 2.0})
    assert report.used == CLIENTS[:3]
    mean = (0 + 0.1 + 2 * 0.2) / 4
    torch.testing.assert_close(method.fleet.base, base + mean)
    torch.testing.assert_close(method.fleet.marks, before + mean)


def test_triggers_stay_within_reach_of_the_noise() -> None:
    method = server(trigger_start=5, trigger_reach=10, trigger_steps=2, steps=2)
    noise = method.raw.clone()
    method.dispatch()
    assert method.raw.dtype == torch.uint8
    moved = (method.raw.int() - noise.int()).abs()
    assert 0 < int(moved.max()) <= 10
    still = server(trigger_start=0, trigger_steps=0, steps=2)
    still.dispatch()
    assert torch.equal(still.raw, noise)


def test_starting_triggers_know_nothing_of_codewords() -> None:
    one, other = (
        BlackCATT.make(
            build("mlp", input_shape=(1, 8, 8), classes=10, seed=0),
            scene(clients=clients, **SMALL | {"steps": 1, "trigger_steps": 0}),
        )
        for clients in (("alice", "bob"), ("carol", "dave", "erin"))
    )
    one.dispatch()
    other.dispatch()
    assert torch.equal(one.raw, other.raw)


def test_the_published_recipe_takes_one_small_step() -> None:
    method = server(steps=1, rate=1e-4, batch=None, enough=None, peers=5, collusion=0.1)
    method.dispatch()
    moved = (method.fleet.marks - method.fleet.base).abs().max()
    assert 0 < float(moved) < 1e-2
    assert method.verify(model_of(method, method.fleet.state("client-0"))).accused == ()


def test_the_rest_of_the_loss_matters() -> None:
    """Peers and regularisation change the marks, in the direction they are there for."""
    plain = server(collusion=0.0, regularisation=0.0)
    kept = server(collusion=0.0, regularisation=20.0)
    aware = server(collusion=1.0, peers=2, regularisation=0.0)
    assert "collusion=1.0" in repr(aware)
    auxiliary = plain.scene.source.prepare(plain.scene.source.render(SECRET, 999, range(20)))
    changes, pairs = [], []
    for method in (plain, kept, aware):
        usual = model_of(method, method.fleet.state())(auxiliary).softmax(1).detach()
        method.dispatch()
        states = [method.fleet.state(client) for client in CLIENTS]
        changes.append(
            sum(float((model_of(method, state)(auxiliary).softmax(1).detach() - usual).abs().sum()) for state in states)
        )
        found = method.verify(model_of(method, *states[:2])).scores
        pairs.append(found["client-0"] + found["client-1"])
    assert changes[1] < changes[0]
    assert pairs[2] > pairs[0]


def test_what_cannot_be_told_is_said_so() -> None:
    method = server()
    answers = method.codewords[1].tolist()
    assert method.verify(Silent(answers)).accused == ("client-1",)
    few = method.verify(Silent(answers[:10] + [NO_ANSWER] * 90))
    assert few.accused == ()
    assert not few.conclusive
    assert method.confidence(Silent(answers), "client-1") == 1.0


def test_correction_asks_for_more() -> None:
    method = server()
    strict = server(correction=True)
    limits = []
    for each in (method, strict):
        word = each.codewords[0]
        found = [len(each.verify(Silent(word[:k].tolist() + [NO_ANSWER] * (100 - k))).accused) for k in range(0, 101)]
        limits.append(found.index(1))
    assert limits[0] <= limits[1]
    z = [threshold(100, 0.01, each.recipe.false_accusation / n) for each, n in ((method, 1), (strict, 4))]
    assert z[0] < z[1]


def test_batch_norm_is_left_alone() -> None:
    model = mlp(16, normed=True)
    method = BlackCATT.make(model, scene(clients=CLIENTS, questions=20, steps=3))
    assert trained_weights(model, method.fleet) == ["1.weight", "1.bias", "4.weight", "4.bias"]
    state = dict(method.dispatch())["client-0"]
    for name in ("2.weight", "2.bias", "2.running_mean", "2.running_var"):
        assert torch.equal(state[name], model.state_dict()[name])
    assert not torch.equal(state["1.weight"], model.state_dict()["1.weight"])


@pytest.mark.parametrize("triggers", [Vectors(12), Tokens(6, vocabulary=30)], ids=["table", "text"])
def test_other_kinds_of_inputs(triggers: Vectors | Tokens) -> None:
    with seeded():
        text = isinstance(triggers, Tokens)
        first = [nn.Embedding(30, 8), nn.Flatten(), nn.Linear(48, 64)] if text else [nn.Linear(12, 64)]
        model = nn.Sequential(*first, nn.ReLU(), nn.Linear(64, 3))
    recipe: dict[str, Any] = {
        "questions": 100,
        "steps": 200,
        "rate": 0.1,
        "regularisation": 0.0,
        "false_accusation": 1e-3,
    }
    method = BlackCATT.make(model, scene(triggers, clients=CLIENTS, classes=3, **recipe))
    before = method.raw.clone()
    for _ in range(3):
        method.collect(dict(method.dispatch()))
    assert torch.equal(before, method.raw) == text
    model.load_state_dict(dict(method.dispatch())["client-2"])
    assert "client-2" in method.verify(model).accused


@pytest.mark.parametrize(
    "options",
    [
        {"questions": 0},
        {"steps": 0},
        {"batch": 0},
        {"rate": 0.0},
        {"momentum": 1.0},
        {"enough": 0.0},
        {"peers": -1},
        {"collusion": -0.1},
        {"trigger_reach": -1},
        {"false_accusation": 1.0},
        {"cutoff": 0.2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_bad_parameters_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|cannot|share|probability"):
        server(**options)


def test_a_state_of_others_is_refused() -> None:
    state = server().state_dict()
    other = server(questions=50)
    with pytest.raises(ValueError, match="triggers"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="clients"):
        server().load_state_dict(state | {"clients": ["mallory"]})


def test_diverging_marks_are_an_error() -> None:
    method = server(rate=1e6, steps=30)
    with pytest.raises(ValueError, match="smaller rate"):
        method.dispatch()
