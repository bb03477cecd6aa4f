"""Another package can bring a method and an attack of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tramark
from tramark.lab.plugins import plugged

MODULE = '''"""A method from outside."""

from dataclasses import dataclass

from tramark.lab.attacks.base import copied
from tramark.lab.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Nothing:
    """Does nothing."""

    def __call__(self, model, loot):
        return copied(model)


class Mine(FedAvg):
    pass
'''


def offer(folder: Path, entries: str) -> None:
    """An installed package with entry points, as pip leaves it."""
    (folder / "outside.py").write_text(MODULE)
    info = folder / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)


def test_a_package_brings_a_method_and_an_attack(tmp_path: Path) -> None:
    offer(tmp_path, "[tramark.methods]\nmine = outside:Mine\n\n[tramark.attacks]\nnothing = outside:Nothing\n")
    source = str(Path(tramark.__file__).parents[1])
    run = ["run", "--data", "digits", "--model", "mlp", "--clients", "2", "--samples-per-client", "60", "--rounds", "1",
           "--method", "mine", "--out", str(tmp_path / "run")]  # fmt: skip
    words = [run, ["attack", str(tmp_path / "run"), "--attack", "nothing", "--json"], ["methods", "--json"]]
    code = f"from tramark.cli import app\nfor words in {words!r}:\n    app(words, standalone_mode=False)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), source]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text())["method"] == "mine"
    assert '"attack": "Nothing()"' in found.stdout
    assert '"mine": {' in found.stdout


def test_what_cannot_be_loaded_or_has_a_name_that_is_taken_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "[tramark.attacks]\nbroken = outside:Missing\nprune = outside:Nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="tramark.attacks") as told:
        assert plugged("tramark.attacks", ["prune"]) == {}
    said = [str(warning.message) for warning in told]
    assert any("'broken' in tramark.attacks (outside:Missing) cannot be loaded" in line for line in said)
    assert any("that name is taken" in line for line in said)
