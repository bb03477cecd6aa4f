"""`tramark trace` with a real run, real files and a real vault."""

import json
import shutil
from pathlib import Path

import torch
from commands import Shell
from safetensors.torch import save_file

from tramark.lab.models import build
from tramark.report.words import ordinal
from tramark.vault.store import Vault


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
    # One that says the same to everything: the probe cannot tell that from wrong feeding.
    *_, weight, bias = model.state_dict()
    mute = model.state_dict() | {name: torch.zeros_like(model.state_dict()[name]) for name in (weight, bias)}
    save_file(mute, tmp_path / "mute.safetensors")
    doubted = json.loads(tramark("trace", federation, tmp_path / "mute.safetensors", "--json", code=4))
    assert "same label" in doubted["doubt"]
    found = json.loads(
        tramark("trace", federation / "vault", tmp_path / "own.safetensors", "--json", "--no-probe", code=3)
    )
    assert (found["finding"], found["clients"]) == ("nobody", [])
    assert found["premise"]["measured"]
    assert found["power"] > 0.95
    assert not found["federation"]["named"]
    few = ["--budget", 3, "--no-probe"]
    assert "queries" in tramark("trace", federation, tmp_path / "own.safetensors", *few, code=4)


def test_a_vault_that_has_issued_no_marks_clears_nobody(tramark: Shell, tmp_path: Path) -> None:
    tramark("vault", "create", tmp_path / "v", "--clients", "a,b", "--classes", 10, "--input-shape", "1,8,8")
    save_file(build("cnn", input_shape=(1, 8, 8), classes=10, seed=99).state_dict(), tmp_path / "own.safetensors")
    words = ("trace", tmp_path / "v", tmp_path / "own.safetensors", "--model", "cnn")
    assert "No marked model has been issued from this vault yet" in tramark(*words, code=4)
    found = json.loads(tramark(*words, "--json", code=4))
    assert (found["finding"], found["premise"]["issued"]) == ("inconclusive", False)


def test_cases_are_listed_with_the_error_that_they_spend(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    shutil.copytree(federation, tmp_path / "run")
    run, suspect = tmp_path / "run", federation / "models" / "client-0.safetensors"
    # Other tests may have traced with this vault before.
    with Vault.open(run / "vault", readonly=True) as vault:
        earlier = len(vault.cases.all())
    words = tramark("trace", run, suspect)
    assert f"This is the {ordinal(earlier + 1)} trace with this vault. Over all of them" in words
    assert "bit for bit, the model that was issued in round 8 to client-0." in words
    listed = tramark("vault", "cases", run, "--limit", 1e-6)
    assert "client (client-0)  client-0.safetensors" in listed
    assert "(limit 1e-06)" in listed
    assert "would exceed it. Nothing was asked" in tramark("trace", run, suspect, code=9)
    assert "case 1 is closed" in tramark("trace", run, suspect, "--case", 1, code=2)
    assert "no case 99" in tramark("trace", run, suspect, "--case", 99, code=2)


def test_a_dry_run_asks_nothing(federation: Path, tramark: Shell) -> None:
    assert "POST" in tramark("trace", federation, "http://127.0.0.1:9/v2/models/m", "--dry-run")


def test_label_answers_need_the_papers_rule_or_references(labelled: Path, unmarked: list[Path], tramark: Shell) -> None:
    suspect = labelled / "models" / "client-1.safetensors"
    assert "references" in tramark("trace", labelled, suspect, code=2)
    known = [word for path in unmarked for word in ("--reference", path)]
    assert json.loads(tramark("trace", labelled, suspect, "--json", *known))["clients"] == ["client-1"]
    # Too weak to be like the base, as the one above.
    plain = ("--json", "--no-probe", *known[2:])
    assert json.loads(tramark("trace", labelled, unmarked[0], *plain, code=3))["clients"] == []
    found = json.loads(tramark("trace", labelled, suspect, "--rule", "paper", "--json"))
    assert found["clients"] == ["client-1"]
    assert found["false_accusation_bound"] is None
