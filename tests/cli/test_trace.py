"""`tramark trace` with a real run, real files and a real vault."""

import json
from pathlib import Path

import pytest
from commands import Shell
from safetensors.torch import save_file

from tramark.lab.models import build


def test_every_client_is_named(federation: Path, tramark: Shell) -> None:
    for client in ("client-0", "client-1", "client-2", "client-3"):
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


def test_a_vault_that_has_issued_no_marks_clears_nobody(tramark: Shell, tmp_path: Path) -> None:
    tramark("vault", "create", tmp_path / "v", "--clients", "a,b", "--classes", 10, "--input-shape", "1,8,8")
    save_file(build("cnn", input_shape=(1, 8, 8), classes=10, seed=99).state_dict(), tmp_path / "own.safetensors")
    words = ("trace", tmp_path / "v", tmp_path / "own.safetensors", "--model", "cnn")
    assert "No marked model has been issued from this vault yet" in tramark(*words, code=4)
    found = json.loads(tramark(*words, "--json", code=4))
    assert (found["finding"], found["premise"]["issued"]) == ("inconclusive", False)


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


def test_a_transcript_file_in_a_new_folder(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    kept = tmp_path / "new" / "steps.json"
    tramark("trace", federation, federation / "models" / "client-0.safetensors", "--transcript", kept)
    assert kept.stat().st_mode & 0o077 == 0
    assert [path.name for path in kept.parent.iterdir()] == ["steps.json"]


@pytest.mark.parametrize("content", ["{", "3", "[[1, 2]]", '[{"a": 1}]', "[1]"])
def test_a_transcript_that_is_none_is_refused(federation: Path, tramark: Shell, tmp_path: Path, content: str) -> None:
    (tmp_path / "steps.json").write_text(content)
    suspect = federation / "models" / "client-0.safetensors"
    assert "steps.json" in tramark("trace", federation, suspect, "--transcript", tmp_path / "steps.json", code=2)


def test_label_answers_need_the_papers_rule_or_references(labelled: Path, unmarked: list[Path], tramark: Shell) -> None:
    suspect = labelled / "models" / "client-1.safetensors"
    assert "references" in tramark("trace", labelled, suspect, code=2)
    known = [word for path in unmarked for word in ("--reference", path)]
    assert json.loads(tramark("trace", labelled, suspect, "--json", *known))["clients"] == ["client-1"]
    assert json.loads(tramark("trace", labelled, unmarked[0], "--json", *known[2:], code=3))["clients"] == []
    found = json.loads(tramark("trace", labelled, suspect, "--rule", "paper", "--json"))
    assert found["clients"] == ["client-1"]
    assert found["false_accusation_bound"] is None
