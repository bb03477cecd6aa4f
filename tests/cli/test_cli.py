"""What an auditor does at the command line, with a real run, real files and a real vault."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tramark.cli import main
from tramark.lab.models import build
from tramark.lab.simulation.run import Settings, run

CLIENTS = [f"client-{i}" for i in range(4)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("federation") / "run"
    run(Settings(data="digits", clients=4, samples_per_client=200, local_epochs=2, rounds=8, warmup=6), out)
    return out


class Shell:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: object, code: int = 0) -> str:
        self.monkeypatch.setattr("sys.argv", ["tramark", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = self.capsys.readouterr()
        assert (stop.value.code or 0) == code, out + err
        assert "Traceback" not in err
        return out if code != 2 else err


@pytest.fixture
def tramark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def test_every_client_is_named(federation: Path, tramark: Shell) -> None:
    for client in CLIENTS:
        found = json.loads(tramark("trace", federation, federation / "models" / f"{client}.safetensors", "--json"))
        assert found["finding"] == "client"
        assert found["clients"] == [client]
        assert found["queries"] <= 16
        assert found["false_accusation_bound"] == 1e-6
        assert set(found) >= {"e_values", "p_values"}


def test_a_model_of_nobody(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    model = build("cnn", input_shape=(1, 8, 8), classes=10, seed=99)
    save_file(model.state_dict(), tmp_path / "own.safetensors")
    found = json.loads(tramark("trace", federation / "vault", tmp_path / "own.safetensors", "--json", code=3))
    assert found["finding"] == "nobody"
    assert found["clients"] == []
    assert "queries" in tramark("trace", federation, tmp_path / "own.safetensors", "--budget", 3, code=4)


@pytest.mark.parametrize("form", ["safetensors", "pt2", "onnx"])
def test_exports_are_traced(federation: Path, tramark: Shell, tmp_path: Path, form: str) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    file = tmp_path / f"leak.{form}"
    tramark("export", federation, file, "--client", "client-2", "--format", form)
    assert json.loads(tramark("trace", federation, file, "--json"))["clients"] == ["client-2"]


def test_a_trained_model_is_what_the_client_had(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    tramark("export", federation, tmp_path / "leak.safetensors", "--client", "client-2", "--trained")
    trained = (federation / "trained" / "client-2.safetensors").read_bytes()
    assert (tmp_path / "leak.safetensors").read_bytes() == trained
    assert trained != (federation / "models" / "client-2.safetensors").read_bytes()


def test_report_and_evidence(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    suspect = federation / "models" / "client-1.safetensors"
    shown = tramark("trace", federation, suspect, "--report", tmp_path / "report")
    assert "client-1" in shown
    assert "client-1" in (tmp_path / "report" / "report.html").read_text()
    bundle = tmp_path / "report" / "evidence.json"
    checked = tramark("evidence", "verify", bundle, "--commitment", federation / "vault" / "commitment.json")
    assert "verdict: client-1" in checked
    forged = bundle.read_bytes().replace(b"client-1", b"client-2")
    bundle.write_bytes(forged)
    assert tramark("evidence", "verify", bundle, code=2).count("tramark:") == 1


def test_a_trace_can_be_broken_off_and_taken_up_again(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    suspect, kept = federation / "models" / "client-0.safetensors", tmp_path / "steps.json"
    tramark("trace", federation, suspect, "--budget", 4, "--transcript", kept, code=4)
    first = json.loads(kept.read_text())
    assert len(first) == 4
    found = json.loads(tramark("trace", federation, suspect, "--transcript", kept, "--json"))
    assert found["clients"] == ["client-0"]
    assert json.loads(kept.read_text())[:4] == first


def test_a_dry_run_asks_nothing(federation: Path, tramark: Shell) -> None:
    assert "POST" in tramark("trace", federation, "http://127.0.0.1:9/v2/models/m", "--dry-run")


def test_the_vault(federation: Path, tramark: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(federation, tmp_path / "run")
    place = tmp_path / "run"
    shown = tramark("vault", "show", place)
    assert "4: client-0, client-1, client-2, client-3" in shown
    assert "clean" in tramark("vault", "audit", place)
    tramark("vault", "add-client", place, "late")
    assert "5: " in tramark("vault", "show", place)
    monkeypatch.setenv("TRAMARK_NEW_PASSPHRASE", "correct horse")
    tramark("vault", "rotate", place)
    monkeypatch.setenv("TRAMARK_PASSPHRASE", "wrong horse")
    assert tramark("vault", "show", place, code=2).count("tramark:") == 1
    monkeypatch.setenv("TRAMARK_PASSPHRASE", "correct horse")
    assert "clean" in tramark("vault", "audit", place)
    log = place / "vault" / "log.jsonl"
    log.write_text(log.read_text().replace("client-3", "client-2", 1))
    assert "log" in tramark("vault", "audit", place, code=1)


def test_making_a_vault(tramark: Shell, tmp_path: Path) -> None:
    words = ("--clients", "a, b", "--classes", 2, "--input-shape", "1,8,8", "--questions", 16)
    tramark("vault", "create", tmp_path / "v", *words)
    assert (tmp_path / "v.key").stat().st_mode & 0o077 == 0
    assert "2: a, b" in tramark("vault", "show", tmp_path / "v")
    assert "exists already" in tramark("vault", "create", tmp_path / "v", *words, code=2)
    assert "such as 1,28,28" in tramark("vault", "create", tmp_path / "w", *words[:4], "--input-shape", "x", code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trace", "{run}", "{run}/nothing.onnx"), "no file"),
        (("trace", "{run}/nowhere", "{run}/models/client-0.safetensors"), ""),
        (("export", "{run}", "{tmp}/x", "--client", "nobody"), "no model of client 'nobody'"),
        (("trace", "{run}", "{run}/config.json"), "no kind of file"),
        (("trace", "{run}", "{run}/models/client-0.safetensors", "--false-accusation", "2"), "probability"),
        (("evidence", "verify", "{run}/config.json"), ""),
    ],
)
def test_bad_input_is_one_clear_line(
    words: tuple[str, ...], message: str, federation: Path, tramark: Shell, tmp_path: Path
) -> None:
    shown = tramark(*(word.format(run=federation, tmp=tmp_path) for word in words), code=2)
    assert shown.count("tramark: ") == 1
    assert message in shown


def test_label_answers_need_the_papers_rule_or_references(tramark: Shell, tmp_path: Path) -> None:
    settings = Settings(
        data="digits", clients=3, samples_per_client=100, local_epochs=1, rounds=3, warmup=2, answers="label",
        triggers="waffle",
    )  # fmt: skip
    run(settings, tmp_path / "run")
    suspect = tmp_path / "run" / "models" / "client-1.safetensors"
    assert "references" in tramark("trace", tmp_path / "run", suspect, code=2)
    unmarked = []
    for seed in range(19):
        plain = Settings(
            data="digits", clients=1, samples_per_client=300, local_epochs=3, rounds=1, method="fedavg", seed=seed
        )
        run(plain, tmp_path / f"plain-{seed}")
        unmarked.append(tmp_path / f"plain-{seed}" / "models" / "client-0.safetensors")
    known = [word for path in unmarked for word in ("--reference", path)]
    assert json.loads(tramark("trace", tmp_path / "run", suspect, "--json", *known))["clients"] == ["client-1"]
    assert json.loads(tramark("trace", tmp_path / "run", unmarked[0], "--json", *known[2:], code=3))["clients"] == []
    found = json.loads(tramark("trace", tmp_path / "run", suspect, "--rule", "paper", "--json"))
    assert found["clients"] == ["client-1"]
    assert found["false_accusation_bound"] is None
