"""A search must find changes that give the answers, and no larger ones than the margin takes."""

from dataclasses import replace

import pytest
import torch
from nets import drawing, mlp
from torch import Tensor, nn

from tramark.fleet.layout import Layout
from tramark.fleet.moments import EvenMoment, Pull
from tramark.marks.directions import write_directions
from tramark.marks.search import TRIMS, AnswerSheet, Search, leads
from tramark.marks.split import split


def dead_net() -> nn.Module:
    """All units behind the second layer are off."""
    model = mlp(48, 32).eval()
    model.get_parameter("3.bias").data.fill_(-3.0)
    return model


def search_in(model: nn.Module, layer: str, questions: int = 6, clients: int = 3) -> Search:
    """A search for random answers of some clients, with two variants of each question."""
    own = torch.randn(questions, 1, 8, 8, generator=drawing())
    inputs = (own[:, None] + 0.05 * torch.randn(questions, 2, 1, 8, 8, generator=drawing(1))).flatten(0, 1)
    owner = torch.arange(questions).repeat_interleave(2)
    with torch.no_grad():
        classes = model(inputs[:1]).shape[1]
    sheet = AnswerSheet(inputs, owner, torch.randint(classes, (clients, questions), generator=drawing(2)))
    run = split(model, layer, inputs)
    assert isinstance(run.layer_inputs, Tensor)
    directions = write_directions(run.layer_inputs, owner, EvenMoment(), 0.1, residual=0.1)
    out = Layout.of(model).slots[f"{layer}.weight"].sides[0]
    return Search(model, (layer,), run, [directions], [Pull(torch.zeros(out, 0), torch.zeros(0), 1.0)], sheet, 1.0)


def led(search: Search, margin: float) -> Tensor:
    """By how much the answers lead that a search found: clients × inputs."""
    changes = [torch.cat(found) for found in zip(*(found for _, found in search.reach(margin)), strict=True)]
    with torch.no_grad():
        return leads(search.answer(changes), search.sheet)


def test_a_net_of_dead_units_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_in(dead_net(), "3")
    assert led(search, 2.0).min() > 1.5
    # Without the lift the search sees no gradient, and stays where it is.
    monkeypatch.setattr("tramark.marks.lift._OFF", {})
    assert led(search, 2.0).median() < 0


@pytest.mark.parametrize("classes", [10, 200])
def test_the_margin_is_reached_whatever_the_number_of_labels(classes: int) -> None:
    search = search_in(mlp(96, 64, classes=classes).eval(), "3")
    assert led(search, 8.0).median() > 7.0


@pytest.mark.parametrize("excess", [1.0, 3.0])
def test_changes_are_trimmed_to_the_least_that_holds_the_margin(excess: float) -> None:
    search = search_in(mlp(96, 64).eval(), "3")
    wanted = search.sheet.answers
    changes, found = search.smallest(wanted, 4.0)
    assert found
    larger = [excess * change for change in changes]
    trimmed = search.trimmed(larger, wanted, 2.0)
    scale = (trimmed[0].norm(dim=1) / larger[0].norm(dim=1)).flatten()
    assert scale.max() < 1 / excess, "half of the margin takes much less"
    with torch.no_grad():
        kept = leads(search.answer(trimmed), search.sheet)
        # One step of the halving less would be too little for every question.
        less = leads(
            search.answer([change * (1 - excess * 2.0**-TRIMS / scale.min()) for change in trimmed]), search.sheet
        )
    enough = (1 - search.tolerance) * 2.0
    assert kept.min() > 0.95 * enough
    assert (less.view(len(wanted), -1, 2).amin(2) < enough).all()


def test_a_client_whose_questions_stand_in_each_others_way_is_trimmed_as_a_whole() -> None:
    """Each question's change takes margin from the others: scaled down one by one, they would give each other's up."""
    search = search_in(mlp(96, 64).eval(), "3")
    owner = search.sheet.owner
    shared = replace(search, edits=[search.edits[0] @ (torch.eye(int(owner.max()) + 1) + 0.5)])
    wanted = shared.sheet.answers
    changes, _ = shared.smallest(wanted, 6.0)
    trimmed = shared.trimmed(changes, wanted, 1.0)
    assert float(trimmed[0].norm()) < 0.7 * float(changes[0].norm())
    with torch.no_grad():
        before, after = (leads(shared.answer(some), shared.sheet) for some in (changes, trimmed))
    assert (after > torch.minimum(before, torch.tensor(0.9)) - 0.1).all()


def test_changes_that_miss_the_margin_are_not_trimmed_below_what_they_gave() -> None:
    search = search_in(mlp(96, 64).eval(), "3")
    changes, _ = search.smallest(search.sheet.answers, 2.0)
    half = [0.5 * change for change in changes]
    with torch.no_grad():
        given = leads(search.answer(half), search.sheet)
        kept = leads(search.answer(search.trimmed(half, search.sheet.answers, 2.0)), search.sheet)
    assert kept.min() > given.min() - 0.1
