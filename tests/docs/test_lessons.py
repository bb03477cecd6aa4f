"""Everything that the README, tutorials and how-to guides show runs, and prints what they say."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pages import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_the_page_shows_is_true(page: Path, play: Callable[[Path], None]) -> None:
    if page.name == "flower.md":
        pytest.importorskip("flwr")
    play(page)
