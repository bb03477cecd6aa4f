"""The server sees how much of the marks is left in what comes back, and says so."""

import pytest
import torch
from torch import Tensor, nn

from tramark import Keyring, TraMark, WafflePatterns
from tramark.fleet.fleet import Fleet
from tramark.marks import survival
from tramark.marks.control import steer
from tramark.marks.injection import Made, Plan
from tramark.marks.survival import Survival, unseen

CLIENTS = [f"client-{i}" for i in range(7)]
MADE = Made(("1",), 16, 8.0, 1.0, 0.005)


def ring(**options: object) -> Keyring:
    shape = {"input_shape": (1, 8, 8), "normalise": (0.5, 0.5)}
    given = {"clients": CLIENTS, "classes": 10, "questions": 16, "secret": b"s" * 32} | shape | options
    return Keyring.generate(**given)  # type: ignore[arg-type]


def server(**options: object) -> TraMark:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))
    return TraMark(model, ring(**options), warmup_rounds=1)


def without_marks(base: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in base.items()}


def test_the_report_tells_what_was_left() -> None:
    federation = server()
    first = federation.collect(dict(federation.dispatch()))
    assert (first.marked, first.survived) == (True, None)
    outgoing = dict(federation.dispatch())
    base = federation.base_model().state_dict()
    # One client lost its mark, the others kept theirs.
    lost = {client: without_marks(base) for client in CLIENTS[:1]}
    report = federation.collect(outgoing | lost)
    assert report.survived is not None
    assert list(report.survived.clients) == CLIENTS[: survival.CLIENTS]
    assert all(report.survived.clients[client] < 0.5 for client in lost)
    assert all(report.survived.clients[client] > 0.8 for client in CLIENTS[1:3])
    assert report.survived.least < 0.5 < report.survived.mean
    assert report.survived.margin > 0
    assert "of the answers were left" in str(report)


def test_scores_tell_a_mark_whose_labels_training_has_moved() -> None:
    """One label gains 50 for all inputs: no answer is left, and the scores still tell each client."""
    federation = server()
    federation.collect(dict(federation.dispatch()))
    shifted = {client: dict(state) for client, state in federation.dispatch().items()}
    for state in shifted.values():
        state["5.bias"] = state["5.bias"] + 50.0 * (torch.arange(10) == 4)
    with pytest.warns(
        UserWarning, match="cannot be traced well where only labels are to be had; its scores tell enough"
    ):
        report = federation.collect(shifted)
    assert report.survived is not None
    assert report.survived.mean < 0.5
    assert report.survived.told > 1
    base = federation.base_model().state_dict()
    gone = federation.collect({client: without_marks(base) for client in CLIENTS})
    assert gone.survived is not None
    assert gone.survived.told < 0.5


def test_marks_that_do_not_survive_are_warned_of() -> None:
    federation = server()
    federation.collect(dict(federation.dispatch()))
    base = federation.base_model().state_dict()
    with pytest.warns(UserWarning, match="cannot be traced well"):
        report = federation.collect({client: without_marks(base) for client in CLIENTS})
    assert report.survived is not None
    assert report.survived.mean < 0.5


def test_refused_updates_are_not_measured() -> None:
    federation = server()
    federation.collect(dict(federation.dispatch()))
    outgoing = dict(federation.dispatch())
    broken = {name: tensor * torch.nan for name, tensor in outgoing["client-0"].items()}
    report = federation.collect(outgoing | {"client-0": broken})
    assert report.survived is not None
    assert "client-0" not in report.survived.clients
    assert "client-0" in report.refused
    assert "refused client-0" in str(report)


def test_what_is_measured_was_neither_written_nor_is_it_asked() -> None:
    keyring = ring()
    key = keyring.key("client-0")
    inputs, answers = unseen(keyring, key.questions, key.answers)
    assert len(inputs) == len(answers) == 16
    for part in ("train", "held-out"):
        known = keyring.inputs(key, part)
        assert not (known == inputs[:, None]).flatten(2).all(-1).any()
    source = WafflePatterns((1, 8, 8))
    labels = ring(assignment="label", source=source, input_shape=None, normalise=None)
    key = labels.key("client-3")
    inputs, answers = unseen(labels, key.questions, key.answers)
    assert len(inputs) == survival.QUESTIONS
    assert set(answers.tolist()) == {3}


def test_nothing_that_came_back_is_nothing_measured() -> None:
    federation = server()
    assert Survival(federation.model, federation.keyring, federation.fleet).result is None


def test_other_clients_are_asked_each_round() -> None:
    names = [f"client-{i}" for i in range(20)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    keyring, fleet = ring(clients=names), Fleet(model, names)

    def asked(round: int, expected: int) -> list[str]:
        found = Survival(model, keyring.choose(range(16)), fleet, round, expected)
        for name in names:
            found.watch(name, model.state_dict())
        assert found.result is not None
        return list(found.result.clients)

    assert asked(round=0, expected=20) == [names[i] for i in (0, 4, 8, 12, 16)]
    assert {name for round in range(4) for name in asked(round, 20)} == set(names)
    assert len(asked(round=2, expected=1)) == survival.CLIENTS, "more came than were expected"


def test_one_wild_client_of_five_does_not_move_what_the_margin_follows() -> None:
    federation = server()
    federation.collect(dict(federation.dispatch()))
    outgoing = {client: dict(state) for client, state in federation.dispatch().items()}

    def measured(wild: dict[str, float]) -> survival.Survived:
        found = Survival(federation.model, federation.keyring, federation.fleet)
        for client in CLIENTS[:5]:
            state = outgoing[client]
            scaled = {name: wild.get(client, 1.0) * tensor for name, tensor in state.items()}
            found.watch(client, scaled)
        assert found.result is not None
        return found.result

    plain, one, two = measured({}), measured({"client-1": -50.0}), measured({"client-1": -50.0, "client-3": -50.0})
    assert one.low >= min(plain.low, 0.5 * plain.low)
    assert one.least == 0
    assert two.low < -10
    assert steer(Plan(("1",), 8.0), MADE, one).margin < 1.5 * steer(Plan(("1",), 8.0), MADE, plain).margin
