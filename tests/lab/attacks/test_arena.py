"""Attacks on the models of small runs, and what methods say of them; and the command that does it."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tramark.cli import app
from tramark.errors import SettingError
from tramark.lab.attacks import ATTACKS
from tramark.lab.attacks.arena import DEAD, MATRIX, Ledger, Stage, assault, groups, make
from tramark.lab.methods import METHODS, Verifiable
from tramark.lab.methods.table import columns
from tramark.lab.simulation.run import Settings, run

TINY: dict[str, Any] = {
    "data": "digits", "model": "mlp", "clients": 3, "samples_per_client": 200, "local_epochs": 2, "rounds": 3,
    "warmup": 2, "lr": 0.05,
}  # fmt: skip

# Long attacks made short: here they must run, elsewhere they must work.
SHORT: dict[str, dict[str, Any]] = {
    "distil": {"epochs": 1},
    "extract": {"epochs": 1},
    "knockoff": {"epochs": 1, "samples": 128},
    "rnp": {"unlearning_epochs": 1, "recovery_epochs": 1},
    "overwrite": {"questions": 12, "rounds": 1, "epochs": 1},
    "adversarial-training": {"epochs": 1, "steps": 1},
    **{key: {"epochs": 1} for key in ("retrain-layer", "anti-patterns", "fine-prune", "weight-shift", "retrain")},
}


# What turns up after these only answers: there are no weights to look at.
SERVED = {
    "onnx", "jpeg", "blur", "median", "input-noise", "bit-depth", "flip", "randomise", "round", "label-only",
    "hide-classes", "refuse",
}  # fmt: skip

# The default is made for one training at the end, not for one after each round.
QUICK: dict[str, dict[str, Any]] = {"mfl-owner": {"epochs": 30, "triggers": 64, "size": 32}}

Stages = Callable[[str], Stage]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    @cache
    def stage(method: str) -> Stage:
        folder = tmp_path_factory.mktemp(method)
        run(Settings(**TINY, method=method, options=QUICK.get(method, {})), folder)
        return Stage.of(folder)

    return stage


def attacked(stage: Stage, name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    """What is found after an attack by the first client, without the time that it took."""
    attack = make(name, SHORT.get(name, {}) if parameters is None else parameters)
    row = assault(stage, attack, list(groups(attack, list(stage.leaked)))[:1], samples=200)
    return {key: value for key, value in row.items() if key not in ("seconds", "attack")}


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_runs_and_no_innocent_is_accused(name: str, stages: Stages) -> None:
    row = attacked(stages("tramark"), name)
    assert row["verdicts"]["wrong"] == 0
    assert sum(row["verdicts"].values()) == 1
    assert row["vr"] == row["verdicts"]["right"]
    assert row["queries"] > 0


@pytest.mark.parametrize("name", ATTACKS)
def test_a_method_that_needs_weights_says_nothing_of_what_only_answers(name: str, stages: Stages) -> None:
    row = attacked(stages("robwe"), name)
    assert ("not_applicable" in row) == (name in SERVED)
    if name in SERVED:
        assert "must see the weights" in row["not_applicable"]
        assert "vr" not in row
    else:
        assert sum(row["verdicts"].values()) == 1
        assert row["queries"] == 0


@pytest.mark.parametrize("method", METHODS)
def test_every_method_judges_pruned_averaged_and_served_models(method: str, stages: Stages) -> None:
    wanted: tuple[tuple[str, dict[str, Any]], ...] = (
        ("prune", {"share": 0.3}),
        ("average", {"colluders": 2}),
        ("label-only", {}),
    )
    rows = [attacked(stages(method), *one) for one in wanted]
    if method == "fedavg":
        assert all("vr" not in row and 0.5 < row["ma"] <= 1 for row in rows)
        return
    white_box = not columns(METHODS[method])["black_box"]
    assert ["not_applicable" in row for row in rows] == [False, False, white_box]
    for row in rows[: 2 if white_box else 3]:
        assert sum(row["verdicts"].values()) == 1
        assert 0 < row["confidence"] <= 1
        if not columns(METHODS[method])["traceable"]:
            assert row["verdicts"]["right"] + row["verdicts"]["nobody"] == 1


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if columns(method)["black_box"]])
@pytest.mark.parametrize("name", ["onnx", "permute-units", "rescale-units"])
def test_another_container_or_order_of_weights_leaves_verdicts_as_they_were(
    method: str, name: str, stages: Stages
) -> None:
    before, after = attacked(stages(method), "weight-noise", {"scale": 0.0}), attacked(stages(method), name)
    assert after["verdicts"] == before["verdicts"]
    assert after["confidence"] == pytest.approx(before["confidence"], abs=0.02)
    assert after["ma"] == pytest.approx(before["ma_before"], abs=0.02)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("weight-noise", {"scale": 0.0}),
        ("prune", {"share": 0.0}),
        ("prune-structured", {"share": 0.0}),
        ("randomise", {"share": 0.0}),
        ("input-noise", {"strength": 0}),
        ("bit-depth", {"strength": 8}),
        ("flip", {"strength": 0}),
    ],
)
def test_an_attack_of_no_strength_changes_nothing(name: str, parameters: dict[str, Any], stages: Stages) -> None:
    for method in ["tramark"] if name in SERVED else ["tramark", "robwe"]:
        stage = stages(method)
        row = attacked(stage, name, parameters)
        judge, model = stage.simulation.method, stage.model("client-0")
        assert isinstance(judge, Verifiable)
        assert judge.verify(model).accused == ("client-0",)
        assert row["verdicts"]["right"] == 1
        assert row["confidence"] == judge.confidence(model, "client-0")
        assert row["ma"] == row["ma_before"]
        assert not row["dead"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("weight-noise", {"scale": 0.3}),
        ("fine-tune", {"epochs": 2, "lr": 0.1}),
        ("randomise", {"share": 0.5}),
        ("input-noise", {"strength": 0.3}),
    ],
)
def test_the_same_attack_gives_the_same_row(name: str, parameters: dict[str, Any], stages: Stages) -> None:
    stage = stages("tramark")
    row = attacked(stage, name, parameters)
    assert attacked(stage, name, parameters) == row
    assert attacked(stage, name, parameters | {"seed": 7}) != row


@pytest.mark.parametrize("method", ["fedavg", "tramark"])
def test_a_dead_model_is_marked_as_such_and_a_sound_one_is_not(method: str, stages: Stages) -> None:
    dead = attacked(stages(method), "weight-noise", {"scale": 50.0})
    assert dead["dead"]
    assert dead["ma_before"] - dead["ma"] > DEAD
    assert not attacked(stages(method), "weight-noise", {"scale": 0.01})["dead"]


def test_thieves_take_turns() -> None:
    assert list(groups(make("average", {"colluders": 2}), ["a", "b", "c"])) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert list(groups(make("prune", {}), ["a", "b"])) == [("a",), ("b",)]
    with pytest.raises(SettingError, match="takes 4 colluders"):
        next(groups(make("average", {"colluders": 4}), ["a", "b"]))


def test_the_matrix_is_made_of_attacks_that_there_are() -> None:
    for name, parameters in MATRIX:
        assert all(f"{key}={value!r}" in repr(make(name, parameters)) for key, value in parameters.items())


def test_the_command_keeps_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    run(Settings(**TINY), folder)
    words = ["attack", str(folder), "--attack", "prune", "--param", "share=0.3", "--clients", "2", "--json"]
    first = CliRunner().invoke(app, words, catch_exceptions=False)
    row = json.loads(first.stdout)
    assert {"ma_before", "ma", "vr", "confidence", "verdicts", "queries"} <= row.keys()
    assert row["attack"] == "Prune(share=0.3, scope='layer')"
    assert sum(row["verdicts"].values()) == 2
    monkeypatch.setattr("tramark.lab.attacks.arena.assault", None)  # a call would fail
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert json.loads(again.stdout) == row
    assert len(Ledger(folder).rows) == 1
    everything = CliRunner().invoke(app, ["attack", "--list", "--json"], catch_exceptions=False)
    assert json.loads(everything.stdout).keys() == ATTACKS.keys()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--attack", "prune"], "no run in"),
        (["--attack", "prun"], "no attack 'prun'"),
        (["--attack", "prune", "--param", "shares=1"], "shares"),
        (["--attack", "prune", "--param", "share"], "name=value"),
        ([], "--attack NAME or --all"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], says: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["attack", str(tmp_path), *words])
    assert isinstance(result.exception, SettingError)
    assert says in str(result.exception)
