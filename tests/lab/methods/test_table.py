"""What methods are said to be able to do, and what they do: every declaration against a small federation."""

import json
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from federations import digits, scene, simulate, with_state
from nets import mlp
from torch import Tensor, nn
from typer.testing import CliRunner

from tramark.cli import app
from tramark.errors import SuspectError
from tramark.lab.methods import METHODS, ClientSide, Method, Verifiable
from tramark.lab.methods.table import COLUMNS, columns, summary
from tramark.lab.simulation.client import LocalTraining
from tramark.suspects.base import Answers
from tramark.suspects.module import ModuleSuspect

# What a federation of four rounds on digits needs, where the defaults are made for larger nets and more rounds.
OPTIONS: dict[str, dict[str, Any]] = {
    "tramark": {"questions": 80},
    "blackcatt": {"questions": 200, "steps": 80, "rate": 0.05, "peers": 2},
    "mfl-owner": {"epochs": 60, "triggers": 64, "size": 32},
}
TRAINING = {"fedcrmw": LocalTraining(epochs=5, batch_size=16, lr=0.03)}
MADE = list(METHODS)
VERIFIABLE = [name for name in MADE if hasattr(METHODS[name], "verify")]


def having(column: str, *, of: list[str] = MADE, value: bool = True) -> list[str]:
    return [name for name in of if columns(METHODS[name])[column] is value]


@dataclass
class LabelsOnly:
    """A suspect that gives labels and has nothing else to show."""

    inner: ModuleSuspect

    def ask(self, raw: Tensor) -> Answers:
        return Answers(self.inner.ask(raw).labels)


def net(seed: int = 0) -> nn.Module:
    return mlp(256, 256, seed=seed)


def make(name: str, clients: int = 4) -> Method:
    names = tuple(f"client-{i:02}" for i in range(clients))
    return METHODS[name].make(net(), scene(clients=names, warmup=2, **OPTIONS.get(name, {})))


@dataclass
class Federation:
    """A method after four rounds, and the models that its clients trained in the last of them."""

    method: Method
    trained: dict[str, dict[str, Tensor]]


@cache
def federation(name: str) -> Federation:
    method, trained = make(name), dict[str, dict[str, Tensor]]()
    simulation = simulate(method, TRAINING.get(name))
    for _ in range(4):
        simulation.step(keep=trained.__setitem__)
    return Federation(method, trained)


def unmarked(name: str) -> list[nn.Module]:
    """Models that were trained for the same task, and one that was not trained at all."""
    method = federation(name).method
    if name == "mfl-owner":
        # A model of its own kind: the towers without a matrix, and such as were not trained at all.
        return [with_state(method, method.fleet.state()), make(name).model.eval()]
    return [
        with_state(method, federation("fedavg").method.fleet.state()),
        net(seed=9).eval(),
    ]


def owned(name: str) -> dict[str, nn.Module]:
    """Every client's model: as it was issued or, if it is the client who marks it, as the client had it."""
    method = federation(name).method
    issued = {client: method.fleet.state(client) for client in method.fleet.clients}
    models = federation(name).trained if isinstance(method, ClientSide) else issued
    return {client: with_state(method, state) for client, state in models.items()}


def verifiable(name: str) -> Verifiable:
    method = federation(name).method
    assert isinstance(method, Verifiable)
    return method


def test_all_methods_have_all_columns() -> None:
    for name, method in METHODS.items():
        assert tuple(columns(method)) == COLUMNS
        assert all(isinstance(value, bool) for value in columns(method).values())
        assert summary(method), name


def test_fedavg_marks_nothing() -> None:
    assert having("server_side", of=["fedavg"])
    assert [column for column in COLUMNS if columns(METHODS["fedavg"])[column]] == ["server_side"]
    assert not isinstance(federation("fedavg").method, Verifiable)


def test_tramark_has_it_all() -> None:
    assert all(columns(METHODS["tramark"]).values())


@pytest.mark.parametrize("name", MADE)
def test_server_side_means_that_clients_train_as_ever(name: str) -> None:
    method = make(name)
    assert hasattr(method, "train_client") is not columns(METHODS[name])["server_side"]
    assert isinstance(method, ClientSide) is not columns(METHODS[name])["server_side"]


@pytest.mark.parametrize("name", VERIFIABLE)
def test_marks_are_found_in_clients_models(name: str) -> None:
    method = verifiable(name)
    for client, model in owned(name).items():
        assert method.verify(model).owned
        assert 0 <= method.confidence(model, client) <= 1


@pytest.mark.parametrize("name", having("black_box"))
def test_black_box_means_that_labels_are_enough(name: str) -> None:
    method = verifiable(name)
    client, model = next(iter(owned(name).items()))
    suspect = LabelsOnly(ModuleSuspect(model, digits().prepare))
    assert method.verify(suspect) == method.verify(model)
    assert method.verify(suspect).owned
    assert method.confidence(suspect, client) == method.confidence(model, client)


@pytest.mark.parametrize("name", having("black_box", of=VERIFIABLE, value=False))
def test_white_box_means_that_labels_are_not(name: str) -> None:
    model = next(iter(owned(name).values()))
    with pytest.raises(SuspectError, match=r"weights|module"):
        verifiable(name).verify(LabelsOnly(ModuleSuspect(model, digits().prepare)))


@pytest.mark.parametrize("name", having("traceable"))
def test_traceable_means_that_the_right_client_is_named(name: str) -> None:
    method = verifiable(name)
    assert {client: method.verify(model).accused for client, model in owned(name).items()} == {
        client: (client,) for client in owned(name)
    }


@pytest.mark.parametrize("name", having("traceable", of=VERIFIABLE, value=False))
def test_who_cannot_trace_names_nobody(name: str) -> None:
    assert all(verifiable(name).verify(model).accused == () for model in owned(name).values())


# MFL-Owner compares embeddings with those of one base: another model's differ anyhow, and it may name somebody.
@pytest.mark.parametrize("name", [name for name in VERIFIABLE if name != "mfl-owner"])
def test_a_model_without_marks_is_nobodys(name: str) -> None:
    for model in unmarked(name):
        found = verifiable(name).verify(model)
        assert found.accused == ()
        assert not found.owned


@pytest.mark.parametrize("name", having("collusion"))
def test_of_two_who_average_their_models_one_is_named_and_nobody_else(name: str) -> None:
    method = federation(name).method
    caught = []
    for pair in combinations(method.fleet.clients, 2):
        states = [method.fleet.state(client) for client in pair]
        model = with_state(method, {key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]})
        accused = verifiable(name).verify(model).accused
        assert set(accused) <= set(pair)
        caught.append(bool(accused))
    assert sum(caught) >= 4, "of six pairs"


@pytest.mark.parametrize("name", VERIFIABLE)
def test_there_may_be_more_clients_than_classes(name: str) -> None:
    method = make(name, clients=12)
    assert len(set(method.fleet.clients)) == 12
    assert len(dict(method.dispatch())) == 12


def test_the_command_shows_the_table() -> None:
    shown = CliRunner().invoke(app, ["methods", "--json"])
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.output)
    assert rows == {name: columns(method) | {"summary": summary(method)} for name, method in METHODS.items()}
    table = CliRunner().invoke(app, ["methods"])
    assert table.exit_code == 0, table.output
    lines = table.output.splitlines()
    for name, method in METHODS.items():
        line = next(line for line in lines if line.split()[:1] == [name])
        assert line.count("✓") == sum(bool(value) for value in columns(method).values())
        assert " ".join(summary(method).split()[:4]) in table.output
