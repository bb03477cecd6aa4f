"""Layers and questions must be chosen by what marks cost and lose there, and without a look at anybody's answers."""

from dataclasses import replace

import pytest
import torch
from federations import ring
from nets import drawing, mlp
from torch import Tensor

from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.scratch import loaded
from tramark.keys.keyring import Keyring
from tramark.marks import trial
from tramark.marks.control import LEAST, MOST
from tramark.marks.draft import LOOKED_AT
from tramark.marks.trial import Ground, Tried, choose, looked_at

LAYERS = ("3", "1")


def ground(updates: int = 2, size: float = 0.02) -> Ground:
    """A base whose clients' last updates moved every weight by about `size`."""
    model = mlp(48, 48)
    fleet = Fleet(model, ["a"])
    drift = Drift(fleet.layout, tuple(f"{layer}.weight" for layer in LAYERS))
    moved = [
        {name: size * torch.randn(slot.shape, generator=drawing(seed)) for name, slot in fleet.layout.tensors.items()}
        for seed in range(4)
    ]
    for update in moved:
        drift.observe({name: update[name] for name in drift.layers})
    drift.settle()
    return Ground(model, fleet, drift, tuple(moved[:updates]), 0.1, 1.0)


def test_the_choice_looks_at_nobodys_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ring(questions=12, pool=40)
    chosen = choose(ground(), own, LAYERS, 0)

    def forbidden(*_: object, **__: object) -> Tensor:
        raise AssertionError("an answer was looked at")

    monkeypatch.setattr(Keyring, "key", forbidden)
    monkeypatch.setattr(Keyring, "codebook", forbidden)
    assert choose(ground(), own, LAYERS, 0) == chosen


def test_the_choice_does_not_depend_on_who_takes_part() -> None:
    own = ring(questions=12, pool=40)
    others, _ = choose(ground(), replace(own, clients=("x", "y", "z")), LAYERS, 0)
    assert others == choose(ground(), own, LAYERS, 0)[0]


def test_fewer_questions_are_the_first_of_more() -> None:
    own, given = ring(questions=12, pool=40), ground()
    with loaded(given.model, given.fleet):
        calm = trial._calm(given.model, own)
    more, fewer = (trial._told_apart(given, "3", own, calm, count) for count in (12, 5))
    assert more[:5] == fewer
    assert len(set(more)) == 12


def test_costs_are_seen_on_questions_that_are_not_in_use() -> None:
    own = ring(questions=12, pool=64).choose([0, 3, 5])
    shown = looked_at(own, torch.device("cpu"))
    used = own.source.prepare(own.raw(own.chosen, "train")[:, 0])
    assert len(shown) == LOOKED_AT
    assert not (shown[:, None] == used).flatten(2).all(-1).any()


@pytest.mark.parametrize("updates", [0, 2])
def test_a_layer_whose_marks_are_lost_to_training_needs_more_margin(updates: int) -> None:
    calm, stormy = (choose(ground(updates, size), ring(questions=12, pool=40), ("3",), 0)[0] for size in (0.005, 0.1))
    if not updates:
        assert calm.lost == stormy.lost == trial.UNKNOWN
        return
    assert calm.lost < stormy.lost
    assert calm.needed < stormy.needed


def test_a_layer_costs_more_if_its_marks_are_small_get_lost_or_are_not_there() -> None:
    plain = Tried("fc", (0, 1), margin=4.0, cost=0.01, reached=1.0, lost=3.0)
    for change in ({"margin": 1.0}, {"lost": 6.0}, {"reached": 0.6}, {"cost": 0.02}):
        assert replace(plain, **change).price > 1.9 * plain.price  # type: ignore[arg-type]
    assert replace(plain, lost=0.0).needed == LEAST
    assert replace(plain, lost=1e9).needed == MOST


@pytest.mark.parametrize(
    ("prices", "tried", "expected"),
    [
        ({"3": 1e-4, "1": 1e-6}, [("3", 40)], ("3", 40)),
        ({"3": 0.02, "1": 0.01}, [("3", 40), ("1", 40)], ("1", 40)),
        ({"3": 9.0, "1": 10.0}, [("3", 40), ("1", 40), ("3", 25), ("3", 16)], ("3", 16)),
    ],
    ids=["fine at once", "the cheaper one", "fewer questions"],
)
def test_as_many_questions_as_a_layer_bears(
    prices: dict[str, float],
    tried: list[tuple[str, int]],
    expected: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A price of fewer questions is lower, in the same proportion."""
    seen = []

    def a_try(_: Ground, layer: str, keyring: Keyring) -> Tried:
        seen.append((layer, keyring.questions))
        cost = prices[layer] * keyring.questions / 40
        return Tried(layer, keyring.chosen, margin=LEAST, cost=cost, reached=1.0, lost=0.0)

    monkeypatch.setattr(trial, "_try", a_try)
    found, keyring = choose(ground(), ring(questions=40, pool=200), LAYERS, 0)
    assert seen == tried
    assert keyring.chosen == found.questions
    assert (found.layer, len(found.questions)) == expected
