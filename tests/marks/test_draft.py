"""What marks would cost must be seen without data, and be what they do cost on data."""

import copy
from itertools import product

import pytest
import torch
from federations import digits, ring
from nets import cnn, drawing
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.fleet.drift import Drift
from tramark.fleet.layout import Layout
from tramark.keys.keyring import Keyring
from tramark.keys.pictures import Patterns
from tramark.lab.attacks.base import Loot
from tramark.lab.attacks.difference import second_moment
from tramark.lab.simulation.client import LocalTraining
from tramark.marks.draft import Draft
from tramark.marks.search import AnswerSheet
from tramark.marks.trial import looked_at

LAYERS = ("3", "6")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    net = cnn()
    LocalTraining(epochs=5, lr=0.05)(net, digits(), torch.arange(600), generator=drawing())
    net.zero_grad()
    return net.eval()


@pytest.fixture(scope="module")
def drift(model: nn.Module) -> Drift:
    """The layers' inputs on data, as no server knows them."""
    drift = Drift(Layout.of(model), tuple(f"{layer}.weight" for layer in LAYERS))
    loot = Loot(digits(), torch.arange(600))
    moments = {f"moment.{layer}.weight": second_moment(model, layer, loot).float() for layer in LAYERS}
    scaled = {name: matrix * len(matrix) / matrix.trace() for name, matrix in moments.items()}
    return drift.load_state_dict(scaled | {"rounds": torch.tensor(1)})


def keyring() -> Keyring:
    source = Patterns((1, 8, 8), mean=digits().mean, std=digits().std)
    return ring(source=source, questions=8, pool=80).choose(range(8))


def drafted(model: nn.Module, drift: Drift, layer: str, near: float = 0.1) -> Draft:
    own, device = keyring(), torch.device("cpu")
    sheet = AnswerSheet.of(own, own.clients, device)
    return Draft.of(model, (layer,), drift, sheet, looked_at(own, device), near=near, spread=1.0)


def written(draft: Draft, margin: float) -> list[Tensor]:
    [(_, changes)] = draft.search.reach(margin)
    return changes


def divergence(model: nn.Module, draft: Draft, changes: list[Tensor]) -> float:
    """How far the edited models' answers are from the base's on test images, in the mean over the clients."""
    [part], inputs = draft.parts, digits().prepare(digits().test_inputs)
    total = 0.0
    with torch.no_grad():
        base = model(inputs).log_softmax(1)
        for change in changes[0]:
            edited = copy.deepcopy(model)
            edited.get_parameter(f"{part.name.removesuffix('.weight')}.weight").data.flatten(1).add_(
                change @ part.directions.T
            )
            total += float(F.kl_div(edited(inputs).log_softmax(1), base, log_target=True, reduction="batchmean"))
    return total / len(changes[0])


def test_nothing_written_costs_nothing_and_more_costs_more(model: nn.Module, drift: Drift) -> None:
    draft = drafted(model, drift, "3")
    changes = written(draft, 4.0)
    costs = [draft.cost([scale * change for change in changes]) for scale in (0.0, 0.5, 1.0, 2.0)]
    assert costs[0] == pytest.approx(0.0, abs=1e-6)
    assert costs == sorted(costs)
    assert costs[2] > 2 * costs[1] > 0
    larger = draft.cost(written(draft, 8.0))
    assert larger > 1.5 * draft.cost(written(draft, 2.0))


def test_the_cost_goes_with_what_marks_do_on_data(model: nn.Module, drift: Drift) -> None:
    costs, true = [], []
    for layer, near, margin in product(LAYERS, (0.02, 0.3), (1.0, 12.0)):
        draft = drafted(model, drift, layer, near)
        changes = written(draft, margin)
        costs.append(draft.cost(changes))
        true.append(divergence(model, draft, changes))
    assert all(0.2 < cost / kl < 5 for cost, kl in zip(costs, true, strict=True))
    ranks = torch.tensor([costs, true]).argsort(1).argsort(1).float()
    assert torch.corrcoef(ranks)[0, 1] > 0.85
