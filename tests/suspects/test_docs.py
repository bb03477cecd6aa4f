"""What docs/reference/suspects.md shows must run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tramark.suspects.conventions import Conventions
from tramark.suspects.json_api import JsonTemplate

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "suspects.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_python_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for kind, code in BLOCKS:
        if kind == "python":
            exec(compile(code, "docs/reference/suspects.md", "exec"), names)
    assert names["verdict"].clients == ()
    (shown,) = (code for kind, code in BLOCKS if kind == "text")
    assert capsys.readouterr().out.splitlines()[:-1] == shown.splitlines()[:-1]


def test_the_json_is_what_the_commands_take() -> None:
    template, conventions = (json.loads(code) for kind, code in BLOCKS if kind == "json")
    assert JsonTemplate(**template).scores == "result.scores"
    assert Conventions(**conventions).size == (224, 224)


def test_every_block_says_what_it_is() -> None:
    assert {kind for kind, _ in BLOCKS} == {"python", "json", "shell", "text"}
