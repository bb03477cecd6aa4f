"""A simulated federation from the command line to its folder of results."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import ring
from nets import mlp
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

from tramark import TraMark, trace
from tramark.cli import app, main
from tramark.errors import CheckpointError, SettingError, VaultError
from tramark.keys.pictures import WafflePatterns
from tramark.keys.sources import Source, Tokens, Vectors
from tramark.lab.data import Dataset, load
from tramark.lab.methods import Traced
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining, accuracy, predict
from tramark.lab.simulation.metrics import SIGMA, answers_of_all, judge, task_accuracy, traceability
from tramark.lab.simulation.run import Settings, _lines, prepare, reopen, run
from tramark.lab.simulation.simulator import Simulation
from tramark.marks.closed_form import ClosedForm
from tramark.vault.commit import state_digest
from tramark.vault.store import Vault

SMALL: dict[str, Any] = {"data": "digits", "model": "cnn", "clients": 4, "samples_per_client": 120, "local_epochs": 1}
OPTIONS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def models(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"))}


def same(one: Path, other: Path) -> bool:
    left, right = models(one), models(other)
    return left.keys() == right.keys() and all(
        torch.equal(left[c][name], right[c][name]) for c in left for name in left[c]
    )


def test_a_run_writes_all_it_promises_and_its_models_are_traced(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["run", *OPTIONS, "--rounds", "8", "--warmup", "5", "--out", str(out)])
    assert result.exit_code == 0, result.output
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) == {
        "ma", "ma_best", "vr", "confidence", "confidence_trained", "leakage", "interval", "kl", "seconds", "per_client",
    }  # fmt: skip
    assert summary["vr"] == 1.0
    assert summary["confidence"] > 0.95
    assert summary["interval"] == pytest.approx(summary["confidence"] - summary["leakage"])
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 8
    assert json.loads((out / "config.json").read_text())["warmup"] == 5
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    with Vault.open(out / "vault") as vault:
        assert vault.audit() == []
        keyring = vault.keyring
        # What each of four clients got in eight rounds, and what they get at last.
        assert sum(entry["event"] == "issued" for entry in vault.log()) == 9 * 4
    for client, state in models(out / "models").items():
        model = build("cnn", input_shape=(1, 8, 8), classes=10)
        model.load_state_dict(state)
        verdict = trace(model, keyring)
        assert verdict.clients == (client,)


@pytest.mark.parametrize("method", ["tramark", "fedavg"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, method: str) -> None:
    settings = Settings(**SMALL, rounds=5, warmup=2, method=method)
    whole = run(settings, tmp_path / "whole")

    class StopError(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise StopError

    with pytest.raises(StopError):
        run(settings, tmp_path / "stopped", on_round=stop)
    resumed = run(settings, tmp_path / "stopped", resume=True)
    assert same(tmp_path / "whole" / "models", tmp_path / "stopped" / "models")
    assert {k: v for k, v in resumed.items() if k != "seconds"} == {k: v for k, v in whole.items() if k != "seconds"}
    rounds = [json.loads(line)["round"] for line in (tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [1, 2, 3, 4, 5]


def test_a_run_with_an_automatic_warm_up_keeps_it_when_it_goes_on_for_longer(tmp_path: Path) -> None:
    run(Settings(**SMALL, rounds=2), tmp_path / "run")
    warm = (tmp_path / "run" / "warmup.safetensors").read_bytes()
    run(Settings(**SMALL, rounds=4), tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["warmup"] == 1
    assert (tmp_path / "run" / "warmup.safetensors").read_bytes() == warm
    with Vault.open(tmp_path / "run" / "vault", readonly=True) as vault:
        assert [(report["round"], report["marked"]) for report in vault.reports()] == [(r, True) for r in range(1, 5)]


def test_starting_from_anothers_warm_up_equals_warming_up(tmp_path: Path) -> None:
    settings = Settings(**SMALL, rounds=4, warmup=2)
    run(settings, tmp_path / "first")
    run(settings, tmp_path / "second", warm_from=tmp_path / "first")
    assert same(tmp_path / "first" / "models", tmp_path / "second" / "models")


@pytest.mark.parametrize("preset", ["default", "released"])
def test_the_first_rounds_of_fedavg_need_not_be_played_again(preset: str, tmp_path: Path) -> None:
    small = SMALL | {"split": "iid-stratified", "rounds": 8, "warmup": 6}
    settings = Settings(**small, preset=preset, triggers="waffle" if preset == "released" else "auto")
    run(settings, tmp_path / "played")
    run(Settings(**small, method="fedavg"), tmp_path / "plain")
    taken = run(settings, tmp_path / "taken", first_rounds=tmp_path / "plain")
    mas = {name: [line["ma"] for line in _lines(tmp_path / name)] for name in ("played", "taken")}
    assert len(mas["taken"]) == 8, "the rounds that were taken over have their lines, too"
    assert mas["taken"][:5] == mas["played"][:5]
    if preset == "released":
        assert same(tmp_path / "played" / "models", tmp_path / "taken" / "models")
    else:
        assert taken["vr"] == 1.0
    with pytest.raises(CheckpointError, match="no warm-up to start from"):
        run(settings, tmp_path / "nowhere", first_rounds=tmp_path / "played")


def settings_for(start: str, tmp_path: Path) -> tuple[Settings, dict[str, Any]]:
    """Settings and options of a run that starts without a warm-up, from another run's, or from its own."""
    settings = Settings(**SMALL, rounds=3, warmup=0 if start == "no warm-up" else 1, sample_fraction=0.5)
    if start != "another's warm-up":
        return settings, {}
    run(settings, tmp_path / "first")
    return settings, {"warm_from": tmp_path / "first"}


@pytest.mark.parametrize("start", ["no warm-up", "another's warm-up", "its own warm-up"])
def test_every_model_that_a_client_gets_is_logged_as_issued(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, options = settings_for(start, tmp_path)
    got: list[str] = []
    train = LocalTraining.__call__

    def watched(self: LocalTraining, model: nn.Module, *given: Any, **more: Any) -> float:
        got.append(state_digest(model.state_dict()))
        return train(self, model, *given, **more)

    monkeypatch.setattr(LocalTraining, "__call__", watched)
    out = tmp_path / "run"
    run(settings, out, **options)
    assert len(got) == (2 if "warm_from" in options else 3) * 2
    last = [state_digest(state) for state in models(out / "models").values()]
    assert len(last) == 4
    with Vault.open(out / "vault") as vault:
        logged = {entry["model"] for entry in vault.log() if entry["event"] == "issued"}
        assert vault.audit() == []
    assert {*got, *last} == logged


@pytest.mark.parametrize("method", ["tramark", "waffle"])
def test_looking_at_a_run_changes_nothing_in_its_folder(method: str, tmp_path: Path) -> None:
    settings = Settings(**SMALL, rounds=2, warmup=1, method=method)
    run(settings, tmp_path)

    def files() -> dict[Path, tuple[int, bytes]]:
        return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()}

    before = files()
    found, simulation = reopen(tmp_path)
    assert found == settings
    issued = models(tmp_path / "models")
    for client, state in simulation.method.dispatch().items():
        assert all(torch.equal(state[name], issued[client][name]) for name in state)
    simulation.step()
    assert simulation.method.round == 3
    assert files() == before


@pytest.mark.parametrize("method", ["tramark", "fedavg"])
def test_a_run_killed_before_its_metrics_were_written_loses_no_round(tmp_path: Path, method: str) -> None:
    settings = Settings(**SMALL, rounds=2, warmup=1, method=method)
    run(settings, tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "metrics.jsonl").write_text(lines[0] + "\n")
    run(settings, tmp_path, resume=True)
    again = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in again] == [1, 2]
    assert again[1]["per_client"] == json.loads(lines[1])["per_client"]


def test_settings_that_cannot_work_leave_no_vault_behind(tmp_path: Path) -> None:
    settings = Settings(**SMALL, rounds=2, warmup=1)
    with pytest.raises(SettingError, match="0 workers"):
        run(settings, tmp_path, workers=0)
    assert not (tmp_path / "vault").exists()
    with pytest.raises(CheckpointError, match="no warm-up"):
        run(settings, tmp_path, warm_from=tmp_path / "nowhere")
    assert not (tmp_path / "vault").exists()
    run(settings, tmp_path)


def test_a_run_whose_vault_is_gone_does_not_start_anew(tmp_path: Path) -> None:
    settings = Settings(**SMALL, rounds=2, warmup=1)
    run(settings, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "vault")
    with pytest.raises(VaultError):
        run(settings, tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_how_marks_are_written_can_be_told() -> None:
    settings = Settings(**SMALL, rounds=4, warmup=2, options={"near": 0.05, "margin": 4.0})
    method = prepare(settings).method
    assert isinstance(method, TraMark)
    assert method.injection == ClosedForm(near=0.05, margin=4.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nonesuch"], "no data set named 'nonesuch'"),
        (["--ratio", "1.5"], "must lie between 0 and 1"),
        (["--warmup", "9", "--rounds", "9"], "fewer of them"),
        (["--warmup", "soon"], "a number of rounds, or auto"),
        (["--rounds", "1"], "no model is marked"),
        (["--clients", "5000"], "5000 clients"),
        (["--preset", "paper", "--option", "near=0.2"], "the preset 'paper' does not take"),
        (["--device", "nonesuch"], "no device 'nonesuch'"),
        (["--resume"], "no run to resume"),
        (["--answers", "label", "--triggers", "waffle", "--sample-fraction", "0"], "(0, 1]"),
    ],
)
def test_bad_input_is_one_clear_line(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--data", "digits", "--rounds", "4", "--warmup", "2", "--out", str(tmp_path / "run"), *options]
    assert _fails(["run", *words], monkeypatch, capsys, message)
    # Nothing is in the way of a second try.
    assert not (tmp_path / "run" / "config.json").exists()


def test_an_unwritable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    words = ["run", "--data", "digits", "--out", str(tmp_path / "file" / "run")]
    assert _fails(words, monkeypatch, capsys, "cannot write to")


def test_a_corrupt_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, marked = tmp_path / "plain", tmp_path / "marked"
    run(Settings(**SMALL, rounds=2, warmup=1, method="fedavg"), plain)
    run(Settings(**SMALL, rounds=2, warmup=1), marked)
    words = ["run", *OPTIONS, "--rounds", "2", "--warmup", "1"]
    assert _fails([*words, "--out", str(marked)], monkeypatch, capsys, "holds a run already")
    whole = (plain / "checkpoint.safetensors").read_bytes()
    for broken in (whole[:1000], b"", os.urandom(200)):
        (plain / "checkpoint.safetensors").write_bytes(broken)
        resume = [*words, "--method", "fedavg", "--out", str(plain), "--resume"]
        assert _fails(resume, monkeypatch, capsys, "not a checkpoint of this run")
    other = [*words, "--out", str(marked), "--resume", "--seed", "7"]
    assert _fails(other, monkeypatch, capsys, "other settings: seed 0, not 7")
    for sealed in (marked / "vault" / "sealed").glob("server*"):
        sealed.write_bytes(sealed.read_bytes()[:-1])
    assert _fails([*words, "--out", str(marked), "--resume"], monkeypatch, capsys, "server")


def _fails(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], message: str) -> bool:
    monkeypatch.setattr("sys.argv", ["tramark", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    shown = capsys.readouterr().err
    lines = [line for line in shown.splitlines() if line.startswith("tramark: ")]
    assert stop.value.code not in (0, None)
    assert len(lines) == 1, shown
    assert message in lines[0]
    assert "Traceback" not in shown
    return True


def marked_server(assignment: str = "code") -> TraMark:
    return TraMark(mlp(128, 96), ring(assignment=assignment), warmup_rounds=0)


@pytest.mark.parametrize(("preset", "runs"), [("default", 1), ("paper", 2)])
def test_what_models_share_is_run_once_with_the_same_result(preset: str, runs: int) -> None:
    model = build("cnn", input_shape=(1, 8, 8), classes=10, seed=0)
    keyring = ring(clients=["a", "b"])
    server = TraMark(model, keyring, warmup_rounds=0, preset=preset)
    inputs = torch.randn(5, 1, 8, 8)
    passes: list[Any] = []
    server.model.get_submodule("relu1").register_forward_hook(lambda *_: passes.append(_))
    together = answers_of_all(server.model, server.fleet, inputs)
    assert len(passes) == runs
    for i, client in enumerate(keyring.clients):
        torch.testing.assert_close(together[i], predict(server.client_model(client), inputs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("assignment", ["code", "label"])
def test_metrics_are_the_papers(assignment: str) -> None:
    server = marked_server(assignment)
    keyring, clients = server.keyring, server.fleet.clients
    found = traceability(server, keyring)
    answered = {c: keyring.inputs(keyring.key(c), "held-out") for c in clients}
    accuracies = torch.zeros(3, 3)
    divergences = []
    for i, client in enumerate(clients):
        model = server.client_model(client)
        for j, other in enumerate(clients):
            wanted = torch.tensor(keyring.key(other).answers)[:, None].expand(answered[other].shape[:2])
            accuracies[i, j] = accuracy(model, answered[other].flatten(0, 1), wanted.flatten())
            if i != j:
                mine = predict(model, answered[client].flatten(0, 1)).log_softmax(1)
                others = predict(server.client_model(other), answered[client].flatten(0, 1)).log_softmax(1)
                divergences.append(float(F.kl_div(others, mine, log_target=True, reduction="batchmean")))
    confidence = float(accuracies.diagonal().mean())
    leakage = float((accuracies.sum() - accuracies.trace()) / 6)
    assert found.confidence == pytest.approx(confidence, abs=1e-5)
    assert found.leakage == pytest.approx(leakage, abs=1e-5)
    assert found.interval == pytest.approx(confidence - leakage, abs=1e-5)
    assert found.kl == pytest.approx(sum(divergences) / len(divergences), rel=1e-3)
    assert found.vr == 1.0
    assert found.collisions == pytest.approx(sum(d <= SIGMA for d in divergences) / 6)


def test_a_model_without_a_mark_is_not_traced() -> None:
    server = marked_server()
    base = server.base_model()
    found = judge(server.keyring, server.fleet.clients, lambda x: predict(base, x).expand(3, -1, -1))
    assert found.vr == 0.0
    assert found.kl == pytest.approx(0, abs=1e-6)
    assert found.collisions == 1.0


def test_more_clients_than_labels_with_label_answers_get_virtual_classes() -> None:
    settings = Settings(**SMALL | {"clients": 12, "samples_per_client": 50}, rounds=2, warmup=1, answers="label")
    simulation = prepare(Settings(**vars(settings) | {"triggers": "waffle"}))
    assert simulation.method.fleet.state()["fc2.weight"].shape[0] == 12
    simulation.step()
    assert simulation.step()["vr"] == 1.0


def test_sampled_clients_train_and_all_are_traced() -> None:
    simulation = prepare(
        Settings(**SMALL | {"clients": 10, "samples_per_client": 60}, rounds=4, warmup=1, sample_fraction=0.3)
    )
    lines = [simulation.step() for _ in range(3)]
    assert [line["clients"] for line in lines] == [3, 3, 3]
    assert lines[-1]["vr"] == 1.0


@pytest.mark.parametrize(("kind", "enough"), [("tabular", 0.95), ("text", 0.85)])
def test_tables_and_text(kind: str, enough: float) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (400,), generator=generator)
    if kind == "tabular":
        inputs = torch.randn(400, 20, generator=generator) + labels[:, None]
        dataset = Dataset("toy", inputs, labels, inputs, labels, classes=2, kind="tabular")
        model = build("mlp", input_shape=(20,), classes=2, seed=0)
        source: Source = Vectors(20)
    else:
        tokens = torch.randint(2, 150, (400, 24), generator=generator) + 150 * labels[:, None]
        dataset = Dataset("toy", tokens, labels, tokens, labels, classes=2, kind="text", vocabulary=300)
        model = build("text", input_shape=(24,), classes=2, vocabulary=300, seed=0)
        source = Tokens(24, vocabulary=300)
    parts = [torch.arange(200), torch.arange(200, 400)]
    keyring = ring(clients=["a", "b"], classes=2, source=source, questions=40)
    server = Traced(model, keyring, warmup_rounds=2)
    simulation = Simulation(server, dataset, parts, LocalTraining(epochs=5, batch_size=16))
    for _ in range(4):
        line = simulation.step()
    assert line["confidence"] > enough
    assert line["ma"] > 0.9
    assert task_accuracy(simulation.method, dataset) == {
        "a": line["per_client"]["a"]["ma"],
        "b": line["per_client"]["b"]["ma"],
    }


def with_digits_for_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are made of scikit-learn's digits instead of MNIST's, which would have to be fetched."""
    monkeypatch.setattr("tramark.lab.simulation.triggers.data.load", lambda name, **_: load("digits"))


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_preset_alone_is_the_paper(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_digits_for_mnist(monkeypatch)
    settings = Settings(**SMALL, rounds=4, warmup=2, preset=preset, trigger_count=20)
    assert (settings.answers, settings.verification) == ("label", "test-set")
    assert settings.split == {"paper": "iid", "released": "iid-stratified"}[preset]
    simulation = prepare(settings)
    method = simulation.method
    assert isinstance(method, Traced)
    assert simulation.weighted == (preset == "released")
    digits = load("digits")
    assert [len(own) for own in method.tests] == [int((digits.test_labels == i).sum()) for i in range(4)]
    assert method.keyring.train_variants == 20
    first = digits.train_inputs[digits.train_labels == 2][:20]
    assert torch.equal(method.keyring.raw([2], "train")[0], first) == (preset == "released")
    lines = [simulation.step() for _ in range(3)]
    assert [("vr" in line) for line in lines] == ([False, False, True] if preset == "paper" else [False, True, True])


def test_verification_with_a_test_set_is_algorithm_3(monkeypatch: pytest.MonkeyPatch) -> None:
    with_digits_for_mnist(monkeypatch)
    settings = Settings(**SMALL, rounds=4, warmup=0, preset="released", options={"rate": 0.02, "passes": 3})
    method = prepare(Settings(**vars(settings) | {"trigger_count": 40})).method
    assert isinstance(method, Traced)
    found = method.measure()
    wins = 0
    for i, client in enumerate(method.fleet.clients):
        model = method.client_model(client)
        prepared = [method.keyring.source.prepare(own) for own in method.tests]
        accuracies = [round(100 * accuracy(model, x, torch.full((len(x),), j)), 2) for j, x in enumerate(prepared)]
        wins += accuracies.index(max(accuracies)) == i
        assert found["per_client"][client]["confidence"] == pytest.approx(accuracies[i] / 100, abs=1e-4)
    assert found["vr"] == wins / 4
    few = method.measure(8)
    assert few["per_client"].keys() == found["per_client"].keys()


def test_more_clients_than_digits_are_refused_or_get_waffle_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    with_digits_for_mnist(monkeypatch)
    many = SMALL | {"clients": 12, "samples_per_client": 50, "rounds": 2, "warmup": 1, "answers": "label"}
    with pytest.raises(SettingError, match="ten kinds"):
        prepare(Settings(**many, triggers="mnist"))
    assert isinstance(prepare(Settings(**many)).method.keyring.source, WafflePatterns)  # type: ignore[attr-defined]
    with pytest.raises(SettingError, match="no codewords"):
        Settings(**many | {"answers": "code"}, verification="test-set")


def test_how_clients_train_and_are_measured_can_be_told() -> None:
    simulation = prepare(
        Settings(**SMALL, rounds=2, warmup=1, momentum=0.5, weight_decay=0.0, evaluation_samples=50, method="fedavg")
    )
    assert (simulation.training.momentum, simulation.training.weight_decay) == (0.5, 0.0)
    assert simulation.evaluation_samples == 50


def test_a_warm_up_with_clients_own_weights_can_be_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_digits_for_mnist(monkeypatch)
    settings = Settings(**SMALL, rounds=4, warmup=2, preset="released", trigger_count=20)
    run(settings, tmp_path / "first")
    run(settings, tmp_path / "second", warm_from=tmp_path / "first")
    assert same(tmp_path / "first" / "models", tmp_path / "second" / "models")
    run(Settings(**SMALL, rounds=3, warmup=2), tmp_path / "default")
    with pytest.warns(UserWarning, match="those of the average"):
        run(settings, tmp_path / "third", warm_from=tmp_path / "default")
