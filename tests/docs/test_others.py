"""Everything that the other pages show runs; every link leads somewhere; and little is left out."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, RUN, SHOWN, blocks
from typer.main import get_command

from tramark.cli import app

DOCS = ROOT / "docs"
WRITTEN = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
OTHERS = [
    page
    for page in [ROOT / "CONTRIBUTING.md", *WRITTEN]
    if page.parent.name not in ("tutorials", "how-to") and any(block.kind in RUN for block in blocks(page.read_text()))
]
ALL = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *WRITTEN]


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_what_the_page_shows_is_true(page: Path, play: Callable[[Path], None]) -> None:
    play(page)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_its_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {block.kind for block in blocks(page.read_text())} <= {*RUN, *SHOWN, "json", "toml", "hidden"}


def test_at_most_one_block_in_ten_is_not_run() -> None:
    runnable = [block for page in ALL for block in blocks(page.read_text()) if block.kind in RUN]
    left_out = [block for block in runnable if block.left_out]
    assert 10 * len(left_out) <= len(runnable), [block.left_out for block in left_out]
    assert all(len(block.left_out) > 10 for block in left_out)


def test_every_picture_says_what_it_shows() -> None:
    for page in ALL:
        assert not re.search(r"!\[\s*\]", page.read_text()), page


def test_the_readmes_numbers_are_those_of_the_results() -> None:
    rows = re.findall(
        r"^\|[^|]*\|([^|]*)\| \[.*?\]\((docs/results/.*?)\) \|$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 4
    for measured, page in rows:
        text = (ROOT / page).read_text()
        for number in re.findall(r"-?\d+(?:[ .]\d+)*(?: of \d+)?", measured):
            assert number in text, (number, page)


def test_the_pages_of_the_site_are_all_in_its_contents() -> None:
    for folder in ("tutorials", "how-to", "explanation", "reference", "decisions"):
        listed = re.search(
            r"```\{toctree\}\n:maxdepth: 1\n\n(.*?)```", (DOCS / folder / "index.md").read_text(), re.DOTALL
        )
        assert listed is not None
        assert set(listed[1].split()) | {"index"} == {page.stem for page in (DOCS / folder).glob("*.md")}


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_commands_in_a_sentence_exist(page: Path) -> None:
    for words in re.findall(r"(?<!`)`((?:tramark|python|pytest|make) [^`]*)`(?!`)", page.read_text()):
        program, *rest = shlex.split(words.replace("[", "").replace("]", ""))
        if program == "tramark":
            # What a signature or a key is made for begins with the same word.
            purpose = f'"{words}' in SOURCE or f'"{words.removeprefix("tramark ")}"' in SOURCE
            assert known(get_command(app), rest) or purpose, words
        elif program == "make":
            assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        else:
            script = ROOT / rest[0].partition("::")[0]
            assert script.exists(), words
            if program == "python":
                assert all(f'"{word}"' in script.read_text() for word in rest if word.startswith("--")), words


SOURCE = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))


def known(command: Any, words: list[str]) -> bool:
    """Whether a command has the subcommands and options that are named."""
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts, "--help")}
    if hasattr(command, "commands") and words and not words[0].startswith(("-", "…")):
        return False
    return words[:1] == ["…"] or {word for word in words if word.startswith("--")} <= options
