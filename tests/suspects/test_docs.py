"""The JSON files that docs/reference/suspects.md shows are what the commands take."""

import json

from pages import ROOT, blocks

from tramark.suspects.conventions import Conventions
from tramark.suspects.json_api import JsonTemplate


def test_the_json_is_what_the_commands_take() -> None:
    page = (ROOT / "docs" / "reference" / "suspects.md").read_text()
    template, conventions = (json.loads(block.code) for block in blocks(page) if block.kind == "json")
    assert JsonTemplate(**template).scores == "result.scores"
    assert Conventions(**conventions).size == (224, 224)
