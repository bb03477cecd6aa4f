"""Every attack against every method, on small models; and the command that does it on a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tramark.cli import app
from tramark.errors import SettingError
from tramark.lab.attacks import ATTACKS
from tramark.lab.attacks.arena import MATRIX, Ledger, Stage, assault, groups, make
from tramark.lab.methods import METHODS
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


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    made: dict[str, Stage] = {}
    for method in METHODS:
        folder = tmp_path_factory.mktemp(method)
        run(Settings(**TINY, method=method), folder)
        made[method] = Stage.of(folder)
    return made


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_attack_on_every_method(method: str, name: str, stages: dict[str, Stage]) -> None:
    stage = stages[method]
    attack = make(name, SHORT.get(name, {}))
    thieves = list(groups(attack, list(stage.leaked)))[:1]
    row = assault(stage, attack, thieves, samples=100)
    if "not_applicable" in row:
        assert "weights" in row["not_applicable"], "only a look at the weights of something that answers cannot be had"
        assert getattr(METHODS[method], "access", None) == "white-box"
        return
    assert 0 <= row["ma"] <= 1
    if method == "fedavg":
        assert "vr" not in row
        return
    assert sum(row["verdicts"].values()) == 1
    assert row["vr"] == row["verdicts"]["right"]
    if method == "tramark":
        assert not row["verdicts"]["wrong"]


def test_a_dead_model_is_marked_as_such_and_a_sound_one_is_not(stages: dict[str, Stage]) -> None:
    stage = stages["fedavg"]
    dead, sound = (
        assault(stage, make("weight-noise", {"scale": scale}), [("client-0",)], samples=None) for scale in (50.0, 0.0)
    )
    assert dead["dead"]
    assert not sound["dead"]
    assert sound["ma"] == sound["ma_before"]


def test_thieves_take_turns() -> None:
    assert list(groups(make("average", {"colluders": 2}), ["a", "b", "c"])) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert list(groups(make("prune", {}), ["a", "b"])) == [("a",), ("b",)]
    with pytest.raises(SettingError, match="takes 4 colluders"):
        next(groups(make("average", {"colluders": 4}), ["a", "b"]))


@pytest.mark.parametrize(("name", "parameters"), MATRIX)
def test_the_matrix_is_made_of_attacks_that_there_are(name: str, parameters: dict[str, Any]) -> None:
    assert all(f"{key}={value!r}" in repr(make(name, parameters)) for key, value in parameters.items())


def test_the_command_keeps_what_it_did(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(Settings(**TINY), folder)
    words = ["attack", str(folder), "--attack", "prune", "--param", "share=0.3", "--clients", "2", "--json"]
    first = CliRunner().invoke(app, words, catch_exceptions=False)
    row = json.loads(first.stdout)
    assert {"ma_before", "ma", "vr", "confidence", "verdicts", "queries"} <= row.keys()
    assert row["attack"] == "Prune(share=0.3, scope='layer')"
    assert sum(row["verdicts"].values()) == 2
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert json.loads(again.stdout) == row, "seconds included: it was not done again"
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
