"""No false accusation: 50 suspects that nobody leaked, each asked the questions of 20 federations.

The suspects are networks of all kinds trained on all kinds of data, other learners, answerers that never saw any data,
and those that know the method, but not the secret. Every keyring names the same ten clients, so that a model that was
really marked elsewhere would be good enough to accuse somebody. Half of the keyrings belong to federations that ran:
their questions were chosen by the features of their own warm-up model, and in the same loop each of them is shown
a model that one of its clients did leak.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from traces import Remembering, one_thread

from tramark import Keyring, TraMark, Verdict, trace
from tramark.evidence.premise import Premise
from tramark.evidence.statistics import NO_ANSWER
from tramark.keys.pictures import Patterns, WafflePatterns
from tramark.keys.sources import Source
from tramark.lab.data import Dataset, load
from tramark.lab.methods import Traced
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining, predict
from tramark.lab.simulation.partition import dirichlet, iid
from tramark.lab.simulation.simulator import Simulation
from tramark.suspects.base import Answers, Suspect

pytestmark = pytest.mark.slow

CLIENTS = [f"client {i}" for i in range(10)]
CLASSES = 10
SHAPE = (1, 8, 8)
RAN, DRAWN = 10, 10
"""Keyrings of federations that ran, and keyrings as they were drawn."""
LOOSE = 0.1
KNOWN = Premise(surviving=0.8, measured=True)

Make = Callable[[], nn.Module | Suspect]
Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Remembered:
    """Questions that are made but once, for fifty suspects are asked the same."""

    source: Source
    made: dict[tuple[bytes, int, range], Tensor] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    def render(self, secret: bytes, question: int, variants: range) -> Tensor:
        place = (secret, question, variants)
        if place not in self.made:
            self.made[place] = self.source.render(*place)
        return self.made[place]

    def prepare(self, raw: Tensor) -> Tensor:
        return self.source.prepare(raw)

    def describe(self) -> dict[str, Any]:
        return self.source.describe()


@cache
def digits() -> Dataset:
    return load("digits")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def secret(number: int) -> bytes:
    return hashlib.sha256(f"federation {number}".encode()).digest()


def perceptron(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((64, *widths)):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers, nn.Linear((64, *widths)[-1], CLASSES))


def normed() -> nn.Module:
    """With batch norm and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 64),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(64, CLASSES),
    )


def by_name(name: str) -> Callable[[], nn.Module]:
    return lambda: build(name, input_shape=SHAPE, classes=CLASSES)


NETS: dict[str, Callable[[], nn.Module]] = {
    "cnn": by_name("cnn"),
    "small cnn": by_name("small-cnn"),
    "batch norm": normed,
    "mlp": by_name("mlp"),
    "linear": perceptron,
    "narrow": lambda: perceptron(6),
    "wide": lambda: perceptron(512),
    "deep": lambda: perceptron(48, 48, 48, 48, activation=nn.Tanh),
}


def made(net: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return net()


def trained(net: Callable[[], nn.Module], data: Dataset, seed: int, epochs: int = 3) -> nn.Module:
    model = made(net, seed)
    # As many steps for a small set as for a large one.
    repeats = max(1, 1000 // len(data.train_labels))
    train = LocalTraining(epochs=epochs, batch_size=32, lr=0.05, drop_last=False)
    train(model, data, torch.arange(len(data.train_labels)).repeat(repeats), generator=seeded(seed))
    return model


def other_data() -> dict[str, Dataset]:
    """What else one may train on: parts of the digits, wrong labels, and other images."""
    data, random = digits(), seeded(1)
    images, labels = data.train_inputs, data.train_labels
    anything = torch.randint(CLASSES, labels.shape, generator=random)
    noise = torch.randint(256, images.shape, generator=random, dtype=torch.uint8)
    wrong = torch.rand(len(labels), generator=random) < 0.4
    rare = (labels == 7) | (torch.rand(len(labels), generator=random) < 0.02)
    patterns = torch.cat([Patterns(SHAPE).render(secret(-1), q, range(4)) for q in range(100)])

    def only(mask: Tensor) -> Dataset:
        return replace(data, train_inputs=images[mask], train_labels=labels[mask])

    def called(labels: Tensor) -> Dataset:
        return replace(data, train_labels=labels)

    def seen(images: Tensor) -> Dataset:
        return replace(data, train_inputs=images)

    return {
        "ten images": only(torch.arange(len(labels)) < 10),
        "nearly all sevens": only(rare),
        "even digits": only(labels % 2 == 0),
        "ones and eights": only((labels == 1) | (labels == 8)),
        "labels permuted": called(torch.randperm(CLASSES, generator=random)[labels]),
        "labels at random": called(anything),
        "two labels of five wrong": called(torch.where(wrong, anything, labels)),
        "negatives": seen(255 - images),
        "turned": seen(images.rot90(1, (2, 3)).contiguous()),
        "noise": replace(data, train_inputs=noise, train_labels=anything),
        "patterns of their own": replace(
            data,
            train_inputs=patterns,
            train_labels=torch.randint(CLASSES, (100,), generator=random).repeat_interleave(4),
        ),
    }


def networks() -> dict[str, Make]:
    models = {f"{name}, trained": trained(net, digits(), seed=0) for name, net in NETS.items()}
    models |= {f"mlp, seed {seed}": trained(NETS["mlp"], digits(), seed) for seed in (1, 2, 3)}
    for number, (name, data) in enumerate(other_data().items()):
        models[name] = trained(NETS["batch norm" if number % 3 == 0 else "mlp"], data, seed=10 + number)
    models |= {f"{name}, untrained": made(NETS[name], seed=3) for name in ("cnn", "batch norm", "mlp")}
    models["resnet, untrained"] = made(by_name("resnet18"), seed=3)
    return {name: itself(model) for name, model in models.items()}


def itself(model: nn.Module) -> Make:
    return lambda: model


@dataclass
class By:
    """A suspect that answers raw questions by a rule."""

    rule: Rule

    def ask(self, raw: Tensor) -> Answers:
        return Answers(self.rule(raw))


def one_by_one(rule: Callable[[Tensor], int]) -> By:
    return By(lambda raw: torch.tensor([rule(question) for question in raw]))


def constant(label: int) -> Make:
    return lambda: By(lambda raw: torch.full((len(raw),), label))


def drawn(*chances: float) -> Make:
    """Each label, and no answer at all, with its chance."""
    rng = np.random.default_rng(0)
    labels = [*range(CLASSES), NO_ANSWER]
    return lambda: By(lambda raw: torch.from_numpy(rng.choice(labels, size=len(raw), p=chances)))


def learned(learner: KNeighborsClassifier | RandomForestClassifier | GaussianNB) -> Make:
    learner.fit(digits().train_inputs.flatten(1).numpy(), digits().train_labels.numpy())
    return lambda: By(lambda raw: torch.from_numpy(learner.predict(raw.flatten(1).numpy())))


def hashed(question: Tensor) -> int:
    return hashlib.sha256(question.numpy().tobytes()).digest()[0] % CLASSES


def mindless() -> dict[str, Make]:
    return {
        "nearest neighbours": learned(KNeighborsClassifier(5)),
        "forest": learned(RandomForestClassifier(20, random_state=0)),
        "naive Bayes": learned(GaussianNB()),
        "always 0": constant(0),
        "always 4": constant(4),
        "always 9": constant(9),
        "random": drawn(*[0.1] * 10, 0),
        "mostly 3": drawn(*[0.03] * 3, 0.73, *[0.03] * 6, 0),
        "refuses half": drawn(*[0.05] * 10, 0.5),
        "refuses": constant(NO_ANSWER),
        "hash": lambda: one_by_one(hashed),
    }


def federation(number: int) -> TraMark:
    """Two rounds of warm-up on the digits, then marks."""
    keyring = Keyring.generate(clients=CLIENTS, classes=CLASSES, input_shape=SHAPE, secret=secret(number))
    net = (NETS["mlp"], normed, lambda: perceptron(256, 64))[number % 3]
    server = Traced(made(net, seed=100 + number), keyring, warmup_rounds=2)
    labels, random = digits().train_labels, seeded(number)
    parts = dirichlet(labels, 10, gamma=1.0, generator=random) if number % 2 else iid(labels, 10, generator=random)
    simulation = Simulation(server, digits(), parts, LocalTraining(epochs=1, batch_size=16, lr=0.05), seed=number)
    while not server.marked:
        server.collect(simulation.train())
    return server


def taught(keyring: Keyring, client: str) -> nn.Module:
    """A model into which a client's answers were trained along with the digits, all weights moving."""
    data, key = digits(), keyring.key(client)
    questions = keyring.raw(key.questions, "train").flatten(0, 1)
    answers = torch.tensor(key.answers).repeat_interleave(keyring.train_variants)
    both = replace(
        data,
        train_inputs=torch.cat([data.train_inputs, *[questions] * 3]),
        train_labels=torch.cat([data.train_labels, *[answers] * 3]),
    )
    return trained(NETS["wide"], both, seed=5, epochs=12)


def ranked(model: nn.Module, rank: int) -> Make:
    """Says not what the model would, but its second thought, or its last."""
    return lambda: By(lambda raw: predict(model, raw, prepare=digits().prepare).argsort(1, descending=True)[:, rank])


class Imitator:
    """Gives every question a label of its own, and all variants of it the same, as a marked model would."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, int]] = []
        self.rng = np.random.default_rng(1)

    def __call__(self, question: Tensor) -> int:
        for other, label in self.seen:
            # Variants of a pattern differ by 17 of 255 on average, most other questions by far more.
            if (question.float() - other.float()).abs().mean() < 24:
                return label
        self.seen.append((question, int(self.rng.integers(CLASSES))))
        return self.seen[-1][1]


class Turncoat:
    """Looks back at what it said, and says what it has said least; after ten answers it turns round."""

    def __init__(self) -> None:
        self.said: Counter[int] = Counter(dict.fromkeys(range(CLASSES), 0))

    def __call__(self, question: Tensor) -> int:
        least, most = min(self.said, key=self.said.__getitem__), max(self.said, key=self.said.__getitem__)
        label = least if self.said.total() // 10 % 2 == 0 else (most + int(question.sum())) % CLASSES
        self.said[label] += 1
        return label


def replaying(answers: Sequence[int]) -> Suspect:
    """Recites somebody's answers in the order of asking."""
    asked = count()
    return one_by_one(lambda _: answers[next(asked) % len(answers)])


def marked_elsewhere(elsewhere: TraMark) -> dict[str, tuple[str, nn.Module]]:
    """Models that were really marked, by another federation, and the client that each was marked for."""
    tuned = elsewhere.client_model("client 4")
    LocalTraining(epochs=1, batch_size=16)(tuned, digits(), torch.arange(150), generator=seeded(0))
    return {
        "marked elsewhere": ("client 0", elsewhere.client_model("client 0")),
        "marked elsewhere, trained on": ("client 4", tuned),
        "taught elsewhere": ("client 7", taught(elsewhere.keyring, "client 7")),
    }


def strangers(elsewhere: TraMark, own: nn.Module) -> dict[str, Make]:
    """Those that know all but the secret: the clients of another federation, with a model of their `own`."""
    keyring = elsewhere.keyring
    models = [elsewhere.client_model(client) for client in CLIENTS]
    known = range(200)
    patterns = keyring.raw(known, "train").flatten(2)
    clusters = KMeans(CLASSES, n_init=1, random_state=0).fit(patterns[:, 0].double().numpy())
    nearest = KNeighborsClassifier(1).fit(
        patterns.flatten(0, 1).numpy(), keyring.codebook(known)[3].repeat_interleave(keyring.train_variants).numpy()
    )

    def all_say(raw: Tensor) -> Tensor:
        return torch.stack([predict(model, raw, prepare=digits().prepare).argmax(1) for model in models])

    return {
        "most of those marked elsewhere": lambda: By(lambda raw: all_say(raw).mode(dim=0).values),
        "replayed from elsewhere": lambda: replaying(keyring.codebook(range(32))[2].tolist()),
        "nearest question elsewhere": lambda: By(lambda raw: torch.from_numpy(nearest.predict(raw.flatten(1).numpy()))),
        "cluster of patterns": lambda: By(
            lambda raw: torch.from_numpy(clusters.predict(raw.flatten(1).double().numpy())).long()
        ),
        "imitator": lambda: one_by_one(Imitator()),
        "turncoat": lambda: one_by_one(Turncoat()),
        "second thought": ranked(own, 1),
        "last thought": ranked(own, -1),
    }


def accuses(verdict: Verdict) -> bool:
    """Whether a client is named, or the model is said to come from the federation."""
    return verdict.finding not in ("nobody", "inconclusive")


@dataclass(frozen=True)
class Found:
    """What all traces said."""

    unmarked: dict[tuple[str, int], Verdict]
    """By suspect and keyring."""
    loosely: dict[tuple[str, int], Verdict]
    """The same answers, judged at a bound that leaves something to count."""
    to_the_end: dict[tuple[str, int], Verdict]
    """Those that know the method, asked all variants of all questions."""
    leaked: dict[str, tuple[str, Verdict]]
    """Models that somebody did leak, who that was, and what its own federation's keyring says."""
    questions: list[int]
    """How many questions each keyring has in use, common ones too."""

    def table(self) -> str:
        lines = [f"{dict(Counter(verdict.finding for verdict in self.unmarked.values()))} in all"]
        lines.append(f"{sum(map(accuses, self.loosely.values()))} accused at a bound of {LOOSE}")
        for suspect in dict.fromkeys(name for name, _ in self.unmarked):
            verdicts = [verdict for (name, _), verdict in self.unmarked.items() if name == suspect]
            strongest = max(max(verdict.e_values.values()) for verdict in verdicts)
            findings = dict(Counter(verdict.finding for verdict in verdicts))
            lines.append(f"{suspect}: {findings}, largest e-value {strongest:.3g}")
        return "\n".join(lines)


@pytest.fixture(scope="module")
def found() -> Found:
    return ask_everybody()


@one_thread()
def ask_everybody() -> Found:
    servers = [federation(number) for number in range(RAN)]
    elsewhere = federation(99)
    keyrings = [server.keyring for server in servers]
    for number in range(RAN, RAN + DRAWN):
        triggers = Patterns(SHAPE) if number % 3 else WafflePatterns(SHAPE)
        keyrings.append(Keyring.generate(clients=CLIENTS, classes=CLASSES, source=triggers, secret=secret(number)))
    keyrings = [replace(keyring, source=Remembered(keyring.source)) for keyring in keyrings]
    marked, nets = marked_elsewhere(elsewhere), networks()
    own = nets["cnn, trained"]()
    assert isinstance(own, nn.Module)
    knowing = strangers(elsewhere, own) | {name: itself(model) for name, (_, model) in marked.items()}
    # No mark had been made when these were, but their keyrings' questions were chosen by them.
    warm = {f"warm-up model of federation {number}": itself(servers[number].base_model()) for number in (0, 1)}
    suspects = nets | warm | mindless() | knowing
    unmarked, loosely, to_the_end, leaked = {}, {}, {}, {}
    for number, keyring in enumerate(keyrings):
        for name, make in suspects.items():
            suspect = Remembering(make(), keyring)
            unmarked[name, number] = trace(suspect, keyring, batch=keyring.questions, premise=KNOWN)
            loosely[name, number] = trace(suspect, keyring, false_accusation=LOOSE)
            if name in knowing:
                to_the_end[name, number] = trace(suspect, keyring, exhaustive=True, batch=4)
        if number < RAN:
            leaker = CLIENTS[number]
            leaked[f"federation {number}"] = leaker, trace(servers[number].client_model(leaker), keyring)
    for name, (leaker, model) in marked.items():
        leaked[name] = leaker, trace(model, elsewhere.keyring)
    return Found(unmarked, loosely, to_the_end, leaked, [len(keyring.in_use) for keyring in keyrings])


def test_nobody_is_accused_of_what_nobody_leaked(found: Found) -> None:
    assert len(found.unmarked) == 50 * 20
    for verdicts in (found.unmarked, found.to_the_end):
        accusing = {place: verdict.clients for place, verdict in verdicts.items() if verdict.clients}
        assert not accusing, f"{accusing}\n{found.table()}"
        assert {verdict.finding for verdict in verdicts.values()} <= {"nobody", "inconclusive"}, found.table()
    # All but the suspects that hardly ever answer are cleared.
    assert sum(verdict.finding == "nobody" for verdict in found.unmarked.values()) >= 950, found.table()
    assert any(verdict.federation is not None for verdict in found.unmarked.values())


def test_those_who_know_the_method_are_asked_to_the_end(found: Found) -> None:
    assert len(found.to_the_end) == 11 * 20
    assert all(verdict.queries == 4 * found.questions[number] for (_, number), verdict in found.to_the_end.items())


def test_the_same_traces_name_whoever_did_leak(found: Found) -> None:
    assert len(found.leaked) == RAN + 3
    assert {name: verdict.clients for name, (_, verdict) in found.leaked.items()} == {
        name: (leaker,) for name, (leaker, _) in found.leaked.items()
    }


def test_the_suspects_are_all_different(found: Found) -> None:
    said: dict[str, list[int]] = {}
    for (name, _), verdict in found.unmarked.items():
        said.setdefault(name, []).extend(step.answer for step in verdict.transcript)
    assert len(set(map(tuple, said.values()))) == 50


def test_no_suspect_matches_innocents_more_often_than_chance(found: Found) -> None:
    """A thousand traces are few to see an accusation at one in a million, but enough to see a bias."""
    for suspect in dict.fromkeys(name for name, _ in found.unmarked):
        verdicts = [verdict for (name, _), verdict in found.unmarked.items() if name == suspect]
        matches = sum(sum(verdict.matches.values()) for verdict in verdicts)
        answers = sum(verdict.answered for verdict in verdicts) * len(CLIENTS)
        mean, variance = answers / CLASSES, answers / CLASSES * (1 - 1 / CLASSES)
        assert abs(matches - mean) <= 4.5 * variance**0.5, f"{suspect}: {matches} matches, {mean:.0f} expected"


def test_a_loose_bound_is_kept_too(found: Found) -> None:
    accusing = sum(accuses(verdict) for verdict in found.loosely.values())
    assert 0 < accusing <= LOOSE * len(found.loosely)
    # What is asked of the others does not depend on the bound.
    others = {place: verdict for place, verdict in found.loosely.items() if not accuses(verdict)}
    assert all(v.queries == found.unmarked[place].queries for place, v in others.items())
