"""`tramark probe`, what `trace` does with it, many suspects at once, and `evidence ask`, on a real run."""

import csv
import itertools
import json
import shutil
from pathlib import Path

import pytest
from commands import Shell
from safetensors.torch import save_file

from tramark.cli import many
from tramark.lab.models import build
from tramark.vault.store import Vault


@pytest.fixture
def run(federation: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    shutil.copytree(federation, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_keeps_public_pictures(run: Path) -> None:
    with Vault.open(run / "vault", readonly=True) as vault:
        reference, keyring = vault.reference(), vault.keyring
        assert reference is not None
        assert reference.labels is not None
        assert reference.raw(keyring.source).shape[1:] == keyring.source.shape


def test_a_probe_opens_no_case(run: Path, tramark: Shell, tmp_path: Path) -> None:
    words = ("probe", run / "models" / "client-0.safetensors", "--vault", run, "--out", tmp_path / "c.json")
    found = json.loads(tramark(*words, "--json"))
    assert (found["as_stated"], found["compared"], found["doubt"]) == (True, True, None)
    assert json.loads((tmp_path / "c.json").read_text()) == {}
    assert "nothing is overwritten" in tramark(*words, code=2)
    with Vault.open(run / "vault", readonly=True) as vault:
        assert vault.cases.all() == [] or vault.cases.all()[-1].probe is not None


def test_the_case_and_the_statement_say_how_it_was_fed(run: Path, tramark: Shell, tmp_path: Path) -> None:
    suspect = run / "models" / "client-1.safetensors"
    found = json.loads(tramark("trace", run, suspect, "--json", "--memory", 2, "--seconds", 120))
    assert found["clients"] == ["client-1"]
    assert found["probe"]["queries"] > 0
    assert "own process" in found["confinement"]
    number = found["case"]
    tramark("evidence", "statement", run, number, "--out", tmp_path / "s.json")
    tramark("evidence", "annex", run, number, "--out", tmp_path / "annex.json", "--yes")
    verified = tramark("evidence", "verify", tmp_path / "s.json", "--annex", tmp_path / "annex.json", code=6)
    assert "client-1" in verified
    asked = tramark("evidence", "ask", run, suspect, "--case", number)
    assert f"{found['queries']} of {found['queries']} answers" in asked
    other = tramark("evidence", "ask", run, run / "models" / "client-2.safetensors", "--case", number, code=6)
    assert "this is not the suspect of the case" in other


def test_a_suspect_that_says_one_thing_is_not_cleared(run: Path, tramark: Shell, tmp_path: Path) -> None:
    state = build("cnn", input_shape=(1, 8, 8), classes=10, seed=1).state_dict()
    save_file({name: value * 0 for name, value in state.items()}, tmp_path / "dull.safetensors")
    words = ("trace", run, tmp_path / "dull.safetensors", "--false-accusation", 0.01)
    assert "probably fed or read wrongly" in tramark(*words, code=4)
    assert "Nobody’s mark was found" in tramark(*words, "--no-probe", code=3)


def test_one_that_fails_does_not_stop_the_others(run: Path, tramark: Shell, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    suspects = [tmp_path / "broken.onnx", *(run / "models" / f"client-{i}.safetensors" for i in (2, 3))]
    tramark("trace", run, *suspects, "--csv", tmp_path / "t.csv", code=1)
    tramark("trace", run, suspects[1], "--csv", tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["clients"] for row in rows] == ["", "client-2", "client-3", "client-2"]
    assert rows[0]["finding"] == "failed"
    (tmp_path / "other.csv").write_text("mine\n")
    assert "nothing is overwritten" in tramark("trace", run, suspects[1], "--csv", tmp_path / "other.csv", code=2)


def test_a_folder_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first.onnx").write_bytes(b"1")

    def later(_: float) -> None:
        (tmp_path / "second.onnx").write_bytes(b"22")

    monkeypatch.setattr("tramark.cli.many.time.sleep", later)
    found = [Path(path).name for path in itertools.islice(many.appearing(tmp_path), 2)]
    assert found == ["first.onnx", "second.onnx"]


def test_a_dead_server_and_a_vault_that_refuses_have_codes_of_their_own(run: Path, tramark: Shell) -> None:
    assert "does not answer" in tramark("trace", run, "http://127.0.0.1:9/v2/models/m", code=8)
    (run / "vault.key").write_bytes(b"x" * 32)
    tramark("trace", run, run / "models" / "client-0.safetensors", code=9)
