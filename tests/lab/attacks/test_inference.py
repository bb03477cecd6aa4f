"""What a thief puts between his model and whoever asks, colluders, and the thief who knows the method."""

import copy
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from federations import digits, ring
from nets import cnn
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import TraMark
from tramark.errors import SettingError
from tramark.evidence.statistics import NO_ANSWER
from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import Layout
from tramark.fleet.region import Places, Subspace
from tramark.lab.attacks import ATTACKS, Attack, Collusion, Loot
from tramark.lab.attacks.answers import HideClasses, LabelOnly, Randomise, Round
from tramark.lab.attacks.collusion import Average, Extreme, MixTensors, MixWeights
from tramark.lab.attacks.detector import Refuse
from tramark.lab.attacks.difference import Difference, DifferenceDirections
from tramark.lab.attacks.informed import (
    AntiPatterns,
    ProjectInputs,
    PruneAndTune,
    QuietWeights,
    RetrainLayer,
    odd_inputs,
)
from tramark.lab.attacks.transforms import Transform, jpeg
from tramark.lab.data import Dataset
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining, accuracy, predict
from tramark.marks.closed_form import ClosedForm
from tramark.marks.gradient import GradientSteps
from tramark.marks.layers import editable_layers, linear_layers
from tramark.marks.presets import preset_named
from tramark.suspects.base import Suspect
from tramark.suspects.module import ModuleSuspect

CLIENTS = ["a", "b", "c"]

FILES = ("answers", "collusion", "detector", "difference", "informed", "transforms")
ANSWERING = {
    name: make
    for name, make in ATTACKS.items()
    if getattr(make, "func", make).__module__.removeprefix("tramark.lab.attacks.") in FILES
}


def marks(preset: str) -> ClosedForm | GradientSteps:
    return preset_named(preset) if preset == "default" else preset_named(preset, ratio=0.05)


def tiny_cnn() -> nn.Module:
    return cnn(normed=True, dropout=0.1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": tiny_cnn,
    "mlp": lambda: build("mlp", input_shape=(1, 8, 8), classes=10, seed=0),
}


@pytest.fixture(scope="module")
def loot() -> Loot:
    return Loot(digits(), torch.arange(0, 1400, 4))


@pytest.fixture(scope="module", params=MODELS)
def trained(request: pytest.FixtureRequest) -> list[nn.Module]:
    """Two models that are good at the task and not quite alike."""
    model, start = MODELS[request.param](), torch.Generator().manual_seed(0)
    LocalTraining(epochs=5, batch_size=32, lr=0.1)(model, digits(), torch.arange(1000), generator=start)
    other = copy.deepcopy(model)
    LocalTraining(epochs=1)(other, digits(), torch.arange(1000), generator=start)
    for one in (model, other):
        one.eval().zero_grad()
    return [model, other]


class Fleets:
    """A small federation in which models are marked, and what belongs to it."""

    def __init__(self, preset: str) -> None:
        keyring = ring(clients=CLIENTS)
        model = build("mlp", input_shape=(1, 8, 8), classes=10, seed=0)
        self.server = TraMark(
            model,
            keyring,
            warmup_rounds=4,
            injection=marks(preset),
        )
        self.loot = Loot(digits(), torch.arange(400))
        training = LocalTraining(epochs=3, batch_size=32, lr=0.05)
        for turn in range(4):
            incoming = {}
            for i, (client, state) in enumerate(self.server.dispatch().items()):
                model.load_state_dict(state)
                training(
                    model,
                    digits(),
                    torch.arange(i * 400, (i + 1) * 400),
                    generator=torch.Generator().manual_seed(turn * 10 + i),
                )
                incoming[client] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            self.server.collect(incoming)

    def models(self, *clients: str) -> list[nn.Module]:
        return [self.server.client_model(client) for client in clients]

    def confidence(self, suspect: nn.Module | Suspect, client: str = "a") -> float:
        """The share of a client's answers to its held-out questions."""
        keyring = self.server.keyring
        if isinstance(suspect, nn.Module):
            suspect = ModuleSuspect(suspect, keyring.source.prepare)
        key = keyring.key(client)
        raw = keyring.raw(key.questions, "held-out")
        said = suspect.ask(raw.flatten(0, 1)).labels.view(raw.shape[:2])
        return float((said == torch.tensor(key.answers)[:, None]).float().mean())

    def accuracy(self, model: nn.Module) -> float:
        dataset = self.loot.dataset
        return accuracy(model, dataset.test_inputs, dataset.test_labels, prepare=dataset.prepare)


@pytest.fixture(scope="module")
def marked() -> Fleets:
    return Fleets("default")


def turns_up(attack: Attack | Collusion, models: list[nn.Module], loot: Loot) -> nn.Module | Suspect:
    return attack.collude(models, loot) if isinstance(attack, Collusion) else attack(models[0], loot)


def said(thing: nn.Module | Suspect, raw: Tensor, loot: Loot) -> Tensor:
    suspect = ModuleSuspect(thing, loot.prepare) if isinstance(thing, nn.Module) else thing
    return suspect.ask(raw).labels


def same_state(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


FASTER: dict[str, dict[str, Any]] = {
    "retrain-layer": {"epochs": 2},
    "anti-patterns": {"epochs": 1, "patterns": 64},
    "prune-and-tune": {"epochs": 1},
    "guess-questions": {"guesses": 8, "retouch": 5},
    "quiet-weights": {"action": "redraw", "epochs": 1},
    "difference": {"action": "redraw", "share": 0.01, "epochs": 1},
    "difference-directions": {"directions": 8, "refit": True, "epochs": 1},
}


@pytest.mark.parametrize("name", ANSWERING)
def test_every_attack_answers_repeats_itself_and_leaves_models_alone(
    name: str, trained: list[nn.Module], loot: Loot
) -> None:
    attack = ANSWERING[name](**FASTER.get(name, {}))
    before = copy.deepcopy(trained)
    raw = torch.cat([loot.dataset.test_inputs[:60], odd_inputs(loot.dataset, 20, seed=1)])
    torch.manual_seed(1)
    first = turns_up(attack, trained, loot)
    torch.manual_seed(2)
    second = turns_up(ANSWERING[name](**FASTER.get(name, {})), trained, loot)
    assert all(same_state(one, other) for one, other in zip(trained, before, strict=True))
    assert all(weight.grad is None and not model.training for model in trained for weight in model.parameters())
    answers = said(first, raw, loot)
    assert answers.shape == (80,)
    assert bool(((answers >= NO_ANSWER) & (answers < 10)).all())
    assert torch.equal(answers, said(second, raw, loot))
    if isinstance(first, nn.Module):
        assert isinstance(second, nn.Module)
        assert same_state(first, second)
        assert not first.training
        assert not any(same_state(first, model) for model in trained)
    assert "object at" not in repr(attack)
    # Nobody would use what has forgotten the task.
    floor = 0.5 if name not in ("flip", "extreme") else 0.2
    assert float((answers[:60] == loot.dataset.test_labels[:60]).float().mean()) > floor


def test_another_seed_is_another_attack(trained: list[nn.Module], loot: Loot) -> None:
    raw = loot.dataset.test_inputs
    for name in ("randomise", "mix-weights", "mix-tensors", "retrain-layer", "anti-patterns", "refuse"):
        options = FASTER.get(name, {}) | ({"action": "random"} if name == "refuse" else {})
        one, other = (turns_up(ANSWERING[name](**options, seed=s), trained, loot) for s in (3, 4))
        if isinstance(one, nn.Module):
            assert isinstance(other, nn.Module)
            assert not same_state(one, other)
        else:
            assert not torch.equal(said(one, raw, loot), said(other, raw, loot))


# Inputs, on their way in.


def test_jpeg_keeps_shapes_and_colours() -> None:
    colours = torch.tensor([[200, 30, 90], [0, 255, 0], [128, 128, 128]], dtype=torch.uint8)
    flat = colours[:, :, None, None].expand(3, 3, 10, 13)
    assert (jpeg(flat, 90).int() - flat.int()).abs().max() <= 6
    # Images that are not red, green and blue are grey, channel by channel.
    two = torch.randint(256, (4, 2, 9, 11), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert torch.equal(jpeg(two, 60), torch.cat([jpeg(two[:, :1], 60), jpeg(two[:, 1:], 60)], dim=1))
    assert not torch.equal(jpeg(two, 60), two)
    assert jpeg(two[:0], 60).shape == (0, 2, 9, 11)
    for quality in (0, 101):
        with pytest.raises(SettingError, match="from 1 to 100"):
            jpeg(two, quality)


def test_jpeg_without_pillow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SettingError, match="tramark\\[lab\\]"):
        jpeg(digits().test_inputs[:1], 60)


@pytest.mark.parametrize(
    ("kind", "mild", "strong"),
    [("jpeg", 95, 45), ("blur", 0.5, 0.7), ("noise", 0.01, 0.1), ("bit-depth", 6, 4), ("median", 3, 5)],
)
def test_a_stronger_transform_changes_more(kind: Any, mild: float, strong: float) -> None:
    raw = digits().test_inputs[:50]
    a_little, more = (Transform(kind, s).change(raw) for s in (mild, strong))
    assert a_little.dtype == more.dtype == torch.uint8
    distances = [float((raw.float() - changed.float()).square().mean()) for changed in (a_little, more)]
    assert 0 < distances[0] < distances[1]


def test_transforms_do_what_they_say() -> None:
    raw = digits().test_inputs[:200]
    assert torch.equal(Transform("flip").change(raw), raw.flip(-1))
    assert torch.equal(Transform("flip", 0).change(raw), raw)
    assert len(Transform("bit-depth", 4).change(raw).unique()) <= 16
    assert Transform("bit-depth", 1).change(raw).unique().tolist() == [0, 255]
    grey = torch.full((2, 3, 9, 9), 77, dtype=torch.uint8)
    for kind in ("jpeg", "blur", "median"):
        assert int((Transform(kind).change(grey).int() - 77).abs().max()) <= 1
    noisy = Transform("noise", 0.1).change(
        torch.full((50, 1, 8, 8), 128, dtype=torch.uint8) + torch.arange(50).view(-1, 1, 1, 1).byte() % 2
    )
    assert float(noisy.float().std()) == pytest.approx(25.5, rel=0.05)
    # An input is changed alike whatever else is asked with it.
    assert torch.equal(Transform("noise").change(raw)[7:9], Transform("noise").change(raw[7:9]))


def test_median_takes_away_a_single_pixel() -> None:
    picture = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    picture[0, 0, 3, 4] = 255
    assert not Transform("median").change(picture).any()


def table() -> Dataset:
    rows, labels = torch.randn(80, 6, generator=torch.Generator().manual_seed(0)), torch.arange(80) % 2
    rows[:, 0] += 4 * labels
    return Dataset("rows", rows, labels, rows, labels, classes=2, kind="tabular")


def sentences() -> Dataset:
    words = torch.randint(1, 30, (80, 9), generator=torch.Generator().manual_seed(0))
    words[:, 7:] = 0
    labels = torch.arange(80) % 2
    words[labels == 1, 0] = 29
    return Dataset("words", words, labels, words, labels, classes=2, kind="text", vocabulary=30)


@pytest.mark.parametrize(("make", "model"), [(table, "mlp"), (sentences, "text")])
def test_tables_and_text(make: Callable[[], Dataset], model: str) -> None:
    dataset = make()
    loot = Loot(dataset, torch.arange(80))
    net = build(model, input_shape=dataset.input_shape, classes=2, vocabulary=dataset.vocabulary, seed=0).eval()
    for kind in ("jpeg", "blur", "median", "bit-depth", "flip"):
        with pytest.raises(ValueError, match=f"{kind} changes images, but {dataset.name} is {dataset.kind}"):
            Transform(kind)(net, loot)
    for name, make_attack in ANSWERING.items():
        if name not in ("jpeg", "blur", "median", "bit-depth", "flip"):
            thing = turns_up(make_attack(**FASTER.get(name, {})), [net, copy.deepcopy(net)], loot)
            assert said(thing, dataset.test_inputs, loot).shape == (80,)


def test_noise_on_tables_and_text() -> None:
    rows, words = table(), sentences()
    loot = Loot(rows, torch.arange(80))
    change = Transform("noise", 0.5)._noise(loot)
    moved = (change(rows.train_inputs) - rows.train_inputs).std(0) / rows.train_inputs.std(0)
    torch.testing.assert_close(moved, torch.full((6,), 0.5), atol=0.15, rtol=0)
    changed = Transform("noise", 0.3)._noise(Loot(words, torch.arange(80)))(words.train_inputs)
    assert not changed[:, 7:].any()
    assert bool(((changed[:, :7] > 0) & (changed[:, :7] < 30)).all())
    assert float((changed != words.train_inputs)[:, :7].float().mean()) == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Transform("sharpen"), "unknown transform 'sharpen': use one of jpeg"),  # type: ignore[arg-type]
        (lambda: Transform("jpeg", 0), "a quality from 1 to 100"),
        (lambda: Transform("median", 4), "an odd number"),
        (lambda: Randomise(2), r"lie in \[0, 1\]"),
        (lambda: Round(-1), "fewer than none"),
        (lambda: HideClasses(0), "at least one"),
        (lambda: Refuse(1.0), "between 0 and 1"),
        (lambda: Refuse(action="lie"), "use refuse or random"),  # type: ignore[arg-type]
        (lambda: Refuse(detector="x"), "use mahalanobis or softmax"),  # type: ignore[arg-type]
        (lambda: Average(1), "at least two"),
        (lambda: Average(2, weights=(1.0,)), "one for each of 2 colluders"),
        (lambda: Extreme(kind="mean"), "use min, max or median"),  # type: ignore[arg-type]
        (lambda: Difference(action="swap"), "use one of zero, redraw"),  # type: ignore[arg-type]
        (lambda: Difference(share=0), r"lie in \(0, 1\]"),
        (lambda: DifferenceDirections(directions=0), "at least one"),
        (lambda: ProjectInputs(energy=1.5), "between 0 and 1"),
        (lambda: ProjectInputs(layer="fc1", every=True), "not both"),
        (lambda: ProjectInputs(outputs=2.0), "between 0 and 1"),
        (lambda: QuietWeights(criterion="loud"), "use quiet, large or ratio"),  # type: ignore[arg-type]
        (lambda: QuietWeights(action="average"), "use one of zero, redraw, finetune"),  # type: ignore[arg-type]
        (lambda: AntiPatterns(target="x"), "use uniform or random"),  # type: ignore[arg-type]
        (lambda: AntiPatterns(patterns=0), "at least one"),
    ],
)
def test_bad_parameters_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# Answers, on their way out.


def test_label_only_gives_the_same_labels_and_no_scores(trained: list[nn.Module], loot: Loot) -> None:
    raw = loot.dataset.test_inputs
    answers = LabelOnly()(trained[0], loot).ask(raw)
    assert answers.scores is None
    assert torch.equal(answers.labels, said(trained[0], raw, loot))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_randomise_randomises_that_share(share: float, trained: list[nn.Module], loot: Loot) -> None:
    raw = loot.dataset.train_inputs[:600]
    suspect = Randomise(share)(trained[0], loot)
    answers = suspect.ask(raw)
    changed = answers.labels != said(trained[0], raw, loot)
    # One random label in ten is the one that would have been given.
    assert float(changed.float().mean()) == pytest.approx(0.9 * share, abs=0.06)
    assert torch.bincount(answers.labels[changed], minlength=10).min() > 0 or not share
    assert answers.scores is not None
    assert torch.equal(answers.scores.argmax(1), answers.labels)
    # Whoever asks again, alone or in another order, hears the same.
    assert torch.equal(suspect.ask(raw.flip(0)).labels.flip(0), answers.labels)


def test_rounding(trained: list[nn.Module], loot: Loot) -> None:
    raw = loot.dataset.test_inputs
    probabilities = predict(trained[0], raw, prepare=loot.prepare).softmax(1)
    for decimals in (0, 2):
        answers = Round(decimals)(trained[0], loot).ask(raw)
        assert answers.scores is not None
        assert float((answers.scores - probabilities).abs().max()) <= 0.5 * 10**-decimals + 1e-6
        steps = answers.scores * 10**decimals
        torch.testing.assert_close(steps, steps.round())
    unsure = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        unsure.get_parameter("1.weight").zero_()
        unsure.get_parameter("1.bias").copy_(torch.eye(10)[3])
    assert said(unsure, raw, loot).eq(3).all()
    # No label reaches ½, so that all of them tie at nought.
    assert Round(0)(unsure, loot).ask(raw).labels.eq(0).all()


def test_hidden_labels_are_never_given_and_the_next_best_is(trained: list[nn.Module], loot: Loot) -> None:
    raw = loot.dataset.test_inputs
    scores = predict(trained[0], raw, prepare=loot.prepare)
    answers = HideClasses(3, seed=5)(trained[0], loot).ask(raw).labels
    given = set(answers.tolist())
    hidden = set(range(10)) - given
    assert len(hidden) == 3
    scores[:, sorted(hidden)] = -torch.inf
    assert torch.equal(answers, scores.argmax(1))
    with pytest.raises(ValueError, match="10 of 10 labels cannot be hidden"):
        HideClasses(10)(trained[0], loot)


def test_labels_that_the_task_does_not_have_are_hidden_first(loot: Loot) -> None:
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    with torch.no_grad():
        wide.get_parameter("1.bias")[10:] += 100
    answers = HideClasses(2)(wide, loot).ask(loot.dataset.test_inputs).labels
    assert int(answers.max()) < 10


@pytest.mark.parametrize("detector", ["mahalanobis", "softmax"])
def test_a_detector_refuses_its_share_of_clean_inputs_and_more_of_odd_ones(detector: Any, marked: Fleets) -> None:
    model, keyring = marked.models("a")[0], marked.server.keyring
    # Samples that the federation has not trained on, which would look cleaner to the model; shuffled, since the test
    # set's digits are other people's.
    data = marked.loot.dataset
    order = torch.randperm(597, generator=torch.Generator().manual_seed(0))
    inputs = torch.cat([data.train_inputs[1200:], data.test_inputs])[order]
    labels = torch.cat([data.train_labels[1200:], data.test_labels])[order]
    loot = Loot(dataclasses.replace(data, train_inputs=inputs, train_labels=labels), torch.arange(300))
    clean = inputs[300:]
    # A marked model is sure of its answers to questions, so that only their features give them away.
    blends = (0.5 * clean.float() + 0.5 * clean.flip(0).float()).to(clean.dtype)
    questions = keyring.raw(keyring.key("a").questions, "held-out").flatten(0, 1)
    strange = questions if detector == "mahalanobis" else blends
    suspect = Refuse(0.1, detector=detector)(model, loot)
    refused, odd = ((suspect.ask(raw).labels == NO_ANSWER) for raw in (clean, strange))
    assert 0.03 < float(refused.float().mean()) < 0.2
    assert float(odd.float().mean()) > 2 * float(refused.float().mean())
    assert torch.equal(suspect.ask(clean).labels[~refused], said(model, clean, loot)[~refused])
    assert suspect.ask(clean).scores is None
    guessing = Refuse(0.1, "random", detector)(model, loot).ask(strange).labels
    assert int(guessing.min()) >= 0
    # Only what was refused gets another label, and nearly all of that does.
    assert torch.equal(guessing[~odd], said(model, strange, loot)[~odd])
    assert float((guessing != said(model, strange, loot))[odd].float().mean()) > 0.6


def test_a_detector_needs_samples_and_features(loot: Loot) -> None:
    with pytest.raises(ValueError, match="too few to fit"):
        Refuse()(tiny_cnn(), Loot(digits(), torch.arange(5)))
    features = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    with pytest.raises(ValueError, match="use softmax"):
        Refuse()(features, loot)
    assert Refuse(detector="softmax")(features, loot).ask(loot.inputs[:4]).labels.shape == (4,)


# Several models.


def test_averages_are_means(trained: list[nn.Module], loot: Loot) -> None:
    one, other = (model.state_dict() for model in trained)
    for weights, share in ((None, 0.5), ((3.0, 1.0), 0.75)):
        made = Average(2, weights).collude(trained, loot).state_dict()
        for name, tensor in made.items():
            if name.endswith("num_batches_tracked"):
                assert torch.equal(tensor, one[name])
            elif name.rpartition(".")[2].startswith("running"):
                torch.testing.assert_close(tensor, (one[name] + other[name]) / 2)
            else:
                torch.testing.assert_close(tensor, share * one[name] + (1 - share) * other[name])
    assert same_state(Average(3).collude([trained[0]] * 3, loot), trained[0])


def test_mixtures_take_every_weight_from_somebody(trained: list[nn.Module], loot: Loot) -> None:
    names = [name for name, _ in trained[0].named_parameters()]
    one, other = (model.state_dict() for model in trained)
    mixed = MixWeights().collude(trained, loot).state_dict()
    for name in names:
        mine, theirs = mixed[name] == one[name], mixed[name] == other[name]
        assert bool((mine | theirs).all())
        if mixed[name].numel() > 500:
            assert float(mine[~(mine & theirs)].float().mean()) == pytest.approx(0.5, abs=0.15)
    tensors = MixTensors(seed=1).collude(trained, loot).state_dict()
    sources = [torch.equal(tensors[name], one[name]) for name in names]
    assert all(torch.equal(tensors[n], (one if mine else other)[n]) for n, mine in zip(names, sources, strict=True))
    assert len(set(sources)) == 2


def test_extremes(loot: Loot) -> None:
    models = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(4)]
    stacked = torch.stack([model.get_parameter("1.weight").detach() for model in models])
    expected = {"min": stacked.amin(0), "max": stacked.amax(0), "median": stacked.quantile(0.5, dim=0)}
    for kind, weights in expected.items():
        made = Extreme(4, kind).collude(models, loot).get_parameter("1.weight")  # type: ignore[arg-type]
        torch.testing.assert_close(made.detach(), weights)
    odd = Extreme(3, "median").collude(models[:3], loot).get_parameter("1.weight").detach()
    assert torch.equal(odd, stacked[:3].median(0).values)


def test_colluders_must_be_as_many_as_they_say_and_of_one_kind(loot: Loot) -> None:
    with pytest.raises(ValueError, match="3 models for 2 colluders"):
        Average().collude([tiny_cnn()] * 3, loot)
    with pytest.raises(ValueError, match="colluder 1's model is not like the first one's: unexpected"):
        Average().collude([tiny_cnn(), MODELS["mlp"]()], loot)


@pytest.fixture
def placed() -> tuple[Places, list[nn.Module]]:
    """Models of a fleet whose marks live in places."""
    source, base = torch.Generator().manual_seed(0), tiny_cnn().eval()
    fleet = Fleet(base, CLIENTS)
    region = Places(torch.randperm(fleet.layout.size, generator=source)[:300].sort().values)
    marks = region.take(fleet.base) + 0.05 * torch.randn(3, 300, generator=source)
    fleet.settle(region, marks)
    models = [copy.deepcopy(base) for _ in CLIENTS]
    for client, model in zip(CLIENTS, models, strict=True):
        model.load_state_dict(fleet.state(client))
    return region, models


def flat(model: nn.Module) -> Tensor:
    return Layout.of(model).flatten(model.state_dict())


@pytest.mark.parametrize("colluders", [2, 3])
def test_differencing_finds_exactly_the_places(colluders: int, placed: tuple[Places, list[nn.Module]]) -> None:
    region, models = placed
    found = Difference(colluders).places(models[:colluders])
    assert torch.equal(torch.nonzero(found).flatten(), region.indices)
    few = Difference(colluders, share=100 / len(found)).places(models[:colluders])
    weights = torch.stack([flat(model) for model in models[:colluders]])
    spread = weights.amax(0) - weights.amin(0)
    assert int(few.sum()) == 100
    assert float(spread[few].min()) >= float(spread[found & ~few].max())


def test_what_differs_by_rounding_is_not_the_region(placed: tuple[Places, list[nn.Module]]) -> None:
    region, (one, other, _) = placed
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1 + 2e-7)
    assert torch.equal(torch.nonzero(Difference().places([one, other])).flatten(), region.indices)


@pytest.mark.parametrize("action", ["zero", "redraw", "average", "finetune"])
def test_differencing_treats_the_places_and_nothing_else(
    action: Any, placed: tuple[Places, list[nn.Module]], loot: Loot
) -> None:
    region, models = placed
    made = flat(Difference(action=action, inside=2).collude(models[:2], loot))
    one, other = (flat(model) for model in models[:2])
    outside = torch.ones(len(made), dtype=torch.bool)
    outside[region.indices] = False
    assert torch.equal(made[outside], one[outside])
    inside, mean = region.take(made), (region.take(one) + region.take(other)) / 2
    match action:
        case "zero":
            assert not inside.any()
        case "average":
            torch.testing.assert_close(inside, mean)
        case "finetune":
            assert float((inside - mean).abs().max()) > 1e-4
        case "redraw":
            layout = Layout.of(models[0])
            for slot in layout.tensors.values():
                drawn = made[slot.start : slot.stop][~outside[slot.start : slot.stop]]
                assert set(drawn.tolist()) <= set(one[slot.start : slot.stop].tolist())


def test_differencing_finds_the_directions_of_a_subspace(marked: Fleets) -> None:
    region = marked.server.fleet.region
    assert isinstance(region, Subspace)
    layer = editable_layers(marked.server.model)[0]
    found = DifferenceDirections(3).found(marked.models(*CLIENTS))
    assert list(found) == [f"{layer}.weight"]
    directions, basis = found[f"{layer}.weight"], region.parts[0].basis.double()
    torch.testing.assert_close(directions.T @ directions, torch.eye(directions.shape[1]).double())
    # All that was found lies in the region, and of the region nothing much is left.
    assert float((directions - basis @ (basis.T @ directions)).norm()) < 1e-2
    assert directions.shape[1] <= basis.shape[1]
    assert float((basis - directions @ (directions.T @ basis)).norm() / basis.norm()) < 0.35


def test_blinding_a_layer_takes_the_mark_off(marked: Fleets) -> None:
    models = marked.models("a", "b")
    for refit in (False, True):
        attack = DifferenceDirections(refit=refit)
        made = attack.collude(models, marked.loot)
        ((name, directions),) = attack.found(models).items()
        assert float((made.get_parameter(name).detach().double() @ directions).abs().max()) < 1e-5
        assert marked.confidence(models[0]) > 0.9
        assert marked.confidence(made) < 0.6


def test_fitting_again_keeps_what_the_layer_did(marked: Fleets) -> None:
    models, loot = marked.models("a", "b"), marked.loot
    mean = predict(Average().collude(models, loot), loot.inputs, prepare=loot.prepare)
    blind, fitted = (
        float(
            (predict(DifferenceDirections(refit=refit).collude(models, loot), loot.inputs, prepare=loot.prepare) - mean)
            .square()
            .mean()
        )
        for refit in (False, True)
    )
    assert fitted < 0.5 * blind


# Knowing the method.


@pytest.mark.parametrize("every", [False, True])
def test_projecting_changes_little_on_the_thiefs_data_and_nothing_the_second_time(
    every: bool, trained: list[nn.Module], loot: Loot
) -> None:
    attack = ProjectInputs(0.9999, every=every)
    once = attack(trained[0], loot)
    twice = attack(once, loot)
    for name, weight in once.named_parameters():
        torch.testing.assert_close(weight, twice.get_parameter(name), atol=1e-4, rtol=1e-4)
    before, after = (predict(model, loot.inputs, prepare=loot.prepare) for model in (trained[0], once))
    assert float((before - after).square().mean() / before.square().mean()) < 0.01
    layer = f"{editable_layers(once)[0]}.weight"
    old = trained[0].get_parameter(layer)
    taken = [
        float((ProjectInputs(energy)(trained[0], loot).get_parameter(layer) - old).detach().norm())
        for energy in (0.9, 0.99, 0.9999)
    ]
    assert taken[0] > taken[1] > taken[2] > 0
    changed = [
        name for name, weight in once.named_parameters() if not torch.equal(weight, trained[0].get_parameter(name))
    ]
    linear = [f"{name}.weight" for name in linear_layers(once)]
    assert set(changed) == (set(linear) if every else {linear[0]})


def test_projecting_takes_the_mark_off(marked: Fleets) -> None:
    model = marked.models("a")[0]
    made = ProjectInputs(0.99)(model, marked.loot)
    assert marked.confidence(made) < marked.confidence(model) - 0.3
    assert marked.accuracy(made) > marked.accuracy(model) - 0.05


def test_projecting_can_spare_the_outputs_at_which_the_thiefs_data_pulls(marked: Fleets) -> None:
    model = marked.models("a")[0]
    layer = editable_layers(model)[0]
    old = model.get_parameter(f"{layer}.weight").detach()
    taken = [
        old - ProjectInputs(0.9, outputs=share)(model, marked.loot).get_parameter(f"{layer}.weight").detach()
        for share in (0.0, 0.5, 0.999)
    ]
    assert taken[0].norm() > taken[1].norm() > taken[2].norm() > 0
    outputs: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda _, args, output: outputs.append(output))
    inputs, labels = marked.loot.prepare(marked.loot.inputs), marked.loot.labels
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    handle.remove()
    pull = torch.autograd.grad(loss, outputs)[0]
    felt = [float((pull @ change).norm() / pull.norm() / change.norm()) for change in taken]
    assert felt[0] > felt[1] > felt[2]


def test_with_fewer_samples_than_inputs_projecting_is_the_same(trained: list[nn.Module]) -> None:
    few, layer = Loot(digits(), torch.arange(30)), editable_layers(trained[0])[0]
    weight = f"{layer}.weight"
    made = ProjectInputs(0.99)(trained[0], few).get_parameter(weight).detach()
    seen: list[Tensor] = []
    handle = trained[0].get_submodule(layer).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    predict(trained[0], few.inputs, prepare=few.prepare)
    handle.remove()
    _, values, vectors = torch.linalg.svd(seen[0].double(), full_matrices=False)
    count = int((values.square().cumsum(0) < 0.99 * values.square().sum()).sum()) + 1
    kept = vectors[:count]
    torch.testing.assert_close(
        made.double(), trained[0].get_parameter(weight).detach().double() @ kept.T @ kept, atol=1e-5, rtol=1e-4
    )


def test_a_layer_that_is_not_there(trained: list[nn.Module], loot: Loot) -> None:
    for attack in (ProjectInputs(layer="fc9"), RetrainLayer(layer="fc9")):
        with pytest.raises(ValueError, match="no layer 'fc9' that could bear a mark; this model has"):
            attack(trained[0], loot)


@pytest.mark.parametrize("whole", [False, True])
def test_a_layer_is_trained_anew_alone_or_with_the_others(whole: bool, trained: list[nn.Module], loot: Loot) -> None:
    made = RetrainLayer(2, whole=whole)(trained[0], loot)
    layer = editable_layers(made)[0]
    changed = {
        name for name, weight in made.named_parameters() if not torch.equal(weight, trained[0].get_parameter(name))
    }
    assert changed == {name for name, _ in made.named_parameters() if whole or name.startswith(layer + ".")}
    old, new = (model.get_parameter(f"{layer}.weight").detach().flatten() for model in (trained[0], made))
    assert float(F.cosine_similarity(old, new, dim=0)) < 0.5


def test_a_convolution_is_projected_and_trained_anew(loot: Loot) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    ).eval()
    old = net.get_parameter("2.weight").detach()
    before = predict(net, loot.inputs, prepare=loot.prepare)
    for attack in (ProjectInputs(0.999), ProjectInputs(0.95, outputs=0.9)):
        made = attack(net, loot)
        assert not torch.equal(made.get_parameter("2.weight"), old)
        assert torch.equal(made.get_parameter("0.weight"), net.get_parameter("0.weight"))
    after = predict(ProjectInputs(0.999)(net, loot), loot.inputs, prepare=loot.prepare)
    assert float((before - after).square().mean() / before.square().mean()) < 0.01
    kept = [
        torch.linalg.matrix_rank(ProjectInputs(energy)(net, loot).get_parameter("2.weight").flatten(1))
        for energy in (0.5, 0.999)
    ]
    assert kept[0] < kept[1]
    new = RetrainLayer(1)(net, loot).get_parameter("2.weight").detach()
    assert float(F.cosine_similarity(old.flatten(), new.flatten(), dim=0)) < 0.5


@pytest.fixture
def huge() -> tuple[nn.Module, Loot, Tensor]:
    """A model with three huge weights that nothing feeds, and where its weights get no gradient."""
    model, dark = MODELS["mlp"]().eval(), digits().train_inputs[:200].clone()
    dark[:, :, 0, 0] = 0
    labels = digits().train_labels[:200]
    dataset = Dataset("dark", dark, labels, dark, labels, classes=10, mean=(0.0,), std=(1.0,))
    with torch.no_grad():
        model.get_parameter("fc1.weight")[[3, 5, 7], 0] = 3.0
    F.cross_entropy(model(dataset.prepare(dark)), labels).backward()
    still = torch.cat([weight.grad.flatten() == 0 for weight in model.parameters() if weight.grad is not None])
    model.zero_grad()
    return model, Loot(dataset, torch.arange(200)), still


@pytest.mark.parametrize("criterion", ["quiet", "large", "ratio"])
@pytest.mark.parametrize("action", ["zero", "redraw", "finetune"])
def test_odd_weights_are_found(criterion: Any, action: Any, huge: tuple[nn.Module, Loot, Tensor]) -> None:
    model, loot, still = huge
    count = int(still.sum()) if criterion == "quiet" else 3
    made = QuietWeights(count / len(still), action, criterion, inside=1)(model, loot)
    moved = flat(made) != flat(model)
    places = torch.tensor([3, 5, 7]) * 64
    if action == "finetune":
        # What gets no gradient cannot be trained away.
        assert not moved.any()
    else:
        assert moved[places].all()
        assert float(flat(made)[places].abs().max()) < 1
        assert not (moved & ~still).any()


@pytest.mark.parametrize("target", ["uniform", "random"])
def test_anti_patterns_train_opinions_away(target: Any, trained: list[nn.Module], loot: Loot) -> None:
    made = AntiPatterns(6, target, patterns=128, lr=0.02)(trained[0], loot)
    strangers = odd_inputs(loot.dataset, 100, seed=99)
    dataset = loot.dataset
    old = dict(trained[0].named_buffers())
    assert all(torch.equal(old[name], tensor) for name, tensor in made.named_buffers())
    assert accuracy(made, dataset.test_inputs, dataset.test_labels, prepare=dataset.prepare) > 0.85
    if target == "uniform":
        before, after = (
            predict(m, strangers, prepare=loot.prepare).softmax(1).max(1).values.mean() for m in (trained[0], made)
        )
        assert float(after) < 0.5 * float(before)
    else:
        assert float((said(made, strangers, loot) == said(trained[0], strangers, loot)).float().mean()) < 0.6


def test_odd_inputs_are_of_many_kinds_and_the_seeds_own() -> None:
    for dataset in (digits(), table(), sentences()):
        one, again, other = (odd_inputs(dataset, 12, seed) for seed in (0, 0, 1))
        assert one.shape == (12, *dataset.input_shape)
        assert one.dtype == dataset.train_inputs.dtype
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
        assert len(one.unique(dim=0)) > 9, "hardly any twice: a question may be one token, of thirty"


def test_pruned_weights_stay_pruned(trained: list[nn.Module], loot: Loot) -> None:
    made = PruneAndTune(0.7, epochs=1)(trained[0], loot)
    for name, weight in made.named_parameters():
        old = trained[0].get_parameter(name).detach()
        if weight.dim() > 1:
            zero = weight == 0
            assert float(zero.float().mean()) == pytest.approx(0.7, abs=0.01)
            assert float(old[zero].abs().max()) <= float(old[~zero].abs().min())
        assert not torch.equal(weight, old)
