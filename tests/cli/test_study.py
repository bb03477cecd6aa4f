"""`tramark study`: which cases it runs, what it says of missing data, and its exit codes."""

import io
import json
from pathlib import Path

import pytest
from commands import Shell
from rich.console import Console
from small_zoo import BrokenZoo, SmallZoo

from tramark.lab.studies import zoo_study
from tramark.lab.studies.contents import CONTENTS
from tramark.lab.studies.zoo import HELD_BACK


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(zoo_study, "Zoo", SmallZoo)
    monkeypatch.setenv("TRAMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_studies_are_listed(tramark: Shell) -> None:
    said = tramark("study", "list")
    assert all(name in said for name in CONTENTS)
    assert "laptop" in said


@pytest.mark.usefixtures("small")
def test_open_cases_with_data_are_run_and_what_is_missing_is_said(
    tramark: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    monkeypatch.setattr("tramark.cli.study.console", Console(file=said, width=400))
    table = tramark("study", "zoo", "--out", tmp_path / "out", code=1)
    assert "| pair " in table
    assert "all three" in table
    assert "hidden" not in table
    assert "no data for houses: put svhn*.npz into the folder that --data-dir names" in said.getvalue()
    assert "pair-0 is done" in said.getvalue()
    assert {path.name for path in (tmp_path / "out" / "laptop" / "zoo" / "rows").iterdir()} == {"pair-0.json"}
    assert json.loads((tmp_path / "out" / "laptop" / "zoo" / "results.json").read_text())["rows"][0]["vr_issued"] == 1
    assert (tmp_path / "out" / "laptop" / "zoo" / "picture.png").stat().st_size > 10_000
    assert tramark("study", "zoo", "--out", tmp_path / "out", "--only", "pair") == table
    assert "1 of 1 rows are there already" in said.getvalue()


@pytest.mark.usefixtures("small")
def test_a_failed_case_is_exit_code_1(tramark: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo_study, "Zoo", BrokenZoo)
    said = tramark("study", "zoo", "--out", tmp_path / "out", "--held-back", code=1)
    assert "- hidden, seed 0: RuntimeError: no luck" in said
    assert "--again" in tramark("study", "zoo", "--help")


def test_held_back_federations_are_not_run_by_accident(tramark: Shell, tmp_path: Path) -> None:
    name = sorted(HELD_BACK)[0]
    said = tramark("study", "zoo", "--out", tmp_path, "--only", name, code=2)
    assert f"held back while the defaults are chosen: {name}" in said


def test_unknown_cases_are_named(tramark: Shell, tmp_path: Path) -> None:
    assert "no case named zebra" in tramark("study", "zoo", "--out", tmp_path, "--only", "zebra", code=2)


def test_a_study_writes_its_page_and_the_index(tramark: Shell, tmp_path: Path) -> None:
    out, pages = tmp_path / "out", tmp_path / "pages"
    said = tramark("study", "methods", "--scale", "smoke", "--only", "fedavg,tramark", "--out", out, "--publish", pages)
    assert "| tramark" in said
    assert "tramark study methods --scale smoke" in (pages / "methods.md").read_text()
    assert "[What methods can do](methods.md)" in (pages / "studies.md").read_text()
    assert "smoke: 2" in " ".join(tramark("study", "list", "--out", out).split())
