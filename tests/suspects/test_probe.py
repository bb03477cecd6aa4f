"""What must be true of a probe: it finds out how a suspect is fed and read, or says that it could not."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feeding import Server, servers
from tramark.errors import SuspectError, SuspectUnavailable
from tramark.keys.pictures import Patterns
from tramark.keys.public import public_inputs
from tramark.keys.sources import Tokens, Vectors
from tramark.suspects.conventions import Conventions
from tramark.suspects.feeding import geometry_of
from tramark.suspects.module import FunctionSuspect
from tramark.suspects.probe import QUERIES, probe
from tramark.suspects.readings import best_reading, plain_conventions
from tramark.suspects.reference import Reference, reference_of, renewed, still_sure, without_base
from tramark.suspects.tried import Probed

SOURCE = Patterns((1, 8, 8), mean=(0.3,), std=(0.4,))
CLASSES = 6


class Task:
    """A task that a small net learns in no time: which of six cells of a picture is the brightest."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, CLASSES, (count,), generator=self.random)
        small = torch.rand(count, 1, 2, 3, generator=self.random) * 120
        small.flatten(1)[torch.arange(count), labels] = 255
        return F.interpolate(small, size=(8, 8), mode="bilinear").round(), labels


def learned(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, CLASSES))
    task, optimiser = Task(seed), torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        inputs, labels = task.batch(64)
        loss = F.cross_entropy(net(SOURCE.prepare(inputs)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


@pytest.fixture(scope="module")
def base() -> nn.Module:
    return learned(0)


@pytest.fixture(scope="module")
def other() -> nn.Module:
    """A model of the same task that has nothing to do with the base."""
    return learned(1)


@pytest.fixture(scope="module")
def reference(base: nn.Module) -> Reference:
    return reference_of(base, SOURCE, CLASSES, b"a seed of tests.")


def probed(
    reference: Reference, model: nn.Module, server: Server, conventions: Conventions | None = None, **options: Any
) -> Probed:
    """A probe of a model behind a server that is asked one input at a time, as a URL is."""

    def answer(inputs: Tensor) -> list[Any]:
        pictures = torch.stack([server.picture(one) for one in inputs])
        with torch.no_grad():
            return [server.label(label) for label in model(SOURCE.prepare(pictures * 255)).argmax(1).tolist()]

    stated = conventions or Conventions(prepare=SOURCE.prepare)
    suspect = FunctionSuspect(answer, stated, batch=1)
    suspect.at_once = False
    assert reference.labels is not None
    found = probe(suspect, reference.raw(SOURCE), reference.labels.tolist(), CLASSES, **options)
    assert suspect.conventions is stated
    assert found.queries <= options.get("allowance", QUERIES)
    return found


def test_the_base_is_sure_of_public_pictures(base: nn.Module, other: nn.Module, reference: Reference) -> None:
    assert reference.labels is not None
    assert reference.labels.bincount(minlength=CLASSES).min() >= 4
    raw = reference.raw(SOURCE)
    assert raw.shape[1:] == SOURCE.shape
    with torch.no_grad():
        assert (other(SOURCE.prepare(raw)).argmax(1) == reference.labels).float().mean() > 0.7
    same = still_sure(base, SOURCE, reference)
    assert same is not None
    torch.testing.assert_close(same.inputs, reference.inputs)
    constant = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    nn.init.zeros_(constant[1].weight)  # type: ignore[arg-type]
    assert still_sure(constant, SOURCE, reference) is None
    assert renewed(base, SOURCE, CLASSES, reference).inputs is reference.inputs


@pytest.mark.parametrize("name", [name for name in servers(SOURCE) if name != "dark for bright"])
def test_every_way_is_found_out(name: str, base: nn.Module, reference: Reference) -> None:
    found = probed(reference, base, servers(SOURCE)[name])
    assert found.doubt is None
    assert found.best.alike >= 0.9 * found.best.asked
    # This task does not mind brightness, so some other values do as well.
    assert name.startswith("values") or found.stated == (name == "as the federation")
    # What is proposed is what a file for --conventions may say.
    json.dumps(plain_conventions(found.conventions))


def test_a_way_that_cannot_be_found_is_doubted(base: nn.Module, reference: Reference) -> None:
    assert probed(reference, base, servers(SOURCE)["dark for bright"]).doubt is not None


def test_a_model_without_a_mark_is_not_doubted(other: nn.Module, reference: Reference) -> None:
    ways = servers(SOURCE)
    for name in ("as the federation", "values 0…255", "channels last", "labels from 1"):
        assert probed(reference, other, ways[name]).doubt is None, name


def test_what_is_stated_stands(base: nn.Module, reference: Reference) -> None:
    wrong = Conventions(prepare=SOURCE.prepare, value_range=(0, 1), labels=tuple(range(CLASSES)))
    found = probed(reference, base, servers(SOURCE)["values 0…255"], wrong)
    assert found.stated
    assert found.conventions.value_range == (0, 1)
    assert found.doubt is not None


def test_one_label_for_everything_is_doubted(base: nn.Module, reference: Reference) -> None:
    found = probed(reference, base, Server(lambda x: torch.zeros(SOURCE.shape)))
    assert "get the same label" in str(found.doubt)
    letters = Server(lambda x: x * 0.4 + 0.3, lambda label: "abcdef"[label])
    unknown = probed(reference, base, letters, allowance=8)
    assert "no labels of the federation's" in str(unknown.doubt)


def test_without_a_base_liveliness_is_what_is_seen() -> None:
    raw = without_base(SOURCE, b"seed" * 4).raw(SOURCE)
    lively = FunctionSuspect(lambda inputs: (inputs.flatten(1).sum(1) * 7).long() % CLASSES, SOURCE.prepare)
    assert probe(lively, raw, None, CLASSES, allowance=None).doubt is None
    constant = FunctionSuspect(lambda inputs: [0] * len(inputs), SOURCE.prepare)
    assert probe(constant, raw, None, CLASSES, allowance=None).doubt is not None


@pytest.mark.parametrize("source", [Vectors(10, groups=(3,)), Tokens(9, vocabulary=50)])
def test_tables_and_texts_are_only_read(source: Any) -> None:
    raw = public_inputs(source, b"seed" * 4, range(24))
    suspect = FunctionSuspect(lambda inputs: (inputs.sum(1) * 10).long() % 4 + 1, source.prepare)
    base = [label - 1 for label in suspect.ask(raw).labels.tolist()]
    found = probe(suspect, raw, base, 4, allowance=None)
    assert (found.doubt, found.best.reading, len(found.tried)) == (None, "labels count from 1", 1)


def failing(error: SuspectError) -> Callable[[Tensor], Any]:
    def answer(_: Tensor) -> Any:
        raise error

    return answer


def test_a_suspect_that_fails_in_every_way_is_an_error(reference: Reference) -> None:
    raw, labels = reference.raw(SOURCE), [0] * len(reference.inputs)
    with pytest.raises(SuspectError, match="the suspect fails"):
        probe(FunctionSuspect(lambda _: 1 / 0, SOURCE.prepare), raw, labels, CLASSES)
    with pytest.raises(SuspectUnavailable):
        probe(FunctionSuspect(failing(SuspectUnavailable("gone")), SOURCE.prepare), raw, labels, CLASSES)


def test_labels_are_read_in_the_way_that_fits() -> None:
    base = [0, 1, 2, 0, 1, 2]
    assert best_reading([0, 1, 2, 0, 1, 2], base, 3).labels is None
    assert best_reading([f"LABEL_{label}" for label in base], base, 3).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    named = best_reading(["a", "c", "b"] * 2, base, 3)
    assert named.labels == {"a": 0, "c": 1, "b": 2}
    assert best_reading([3, 1, 2], [], 3).words == "labels count from 1"
    assert best_reading([0, 1, 2], [], 3).words == "labels as they are"


def test_labels_are_read_as_they_are_if_no_way_fits_better_than_chance() -> None:
    base = [number % 10 for number in range(40)]
    weak = [3 if number % 8 else (number % 10 + 1) % 10 for number in range(40)]
    assert best_reading(weak, base, 10).words == "labels as they are"


def test_a_declared_shape_says_how_to_feed() -> None:
    assert geometry_of([None, 3, 32, 32]) == {"layout": "NCHW", "colour": "rgb", "size": (32, 32)}
    assert geometry_of([1, 784]) == {"flat": True}
    assert geometry_of(["batch", 3, "h", "w"]) is None
