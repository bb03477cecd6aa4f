"""Runs what a page of the documents shows: its Python in one namespace from top to bottom, its commands in bash.

Blocks are told apart by their language. `python` and `sh` are run; a Python block that begins with a file name is
written to it. A `text` block shows what the block before it prints: its lines must come in that order, and … stands
for anything. `json` and `toml` must be well-formed. Comments in a page's source say what a reader need not see:

    <!-- run …code… -->          Python that is run at this place
    <!-- smaller                 the next block takes hours, or never ends: it is run with these words replaced
    OLD => NEW -->
    <!-- not run: reason -->     the next block cannot be run in a test
    <!-- not output -->          the next `text` block is no output

As a program, `python pages.py PAGE`, it plays a page in the present folder.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUN = ("python", "sh")
SHOWN = ("text", "diff", "mermaid", "{commands}", "{toctree}", "{eval-rst}")

_PART = re.compile(r"<!-- (?P<note>.*?)-->|^```(?P<kind>\S*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or a comment's code (kind `hidden`)."""

    line: int
    kind: str
    code: str
    left_out: str = ""
    """Why it is not run."""
    output: bool = True
    """Whether a `text` block is what the one before prints."""
    replaced: tuple[tuple[str, str], ...] = ()
    """What a test replaces in the code before it runs it."""

    @property
    def run(self) -> str:
        """The code as a test runs it."""
        code = self.code
        for old, new in self.replaced:
            assert old in code, f"line {self.line}: there is no {old!r} to replace"
            code = code.replace(old, new)
        return code


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    left_out, output = "", True
    replaced: tuple[tuple[str, str], ...] = ()
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if (note := part["note"]) is not None:
            if note.startswith("run\n"):
                yield Block(line, "hidden", note.removeprefix("run\n"))
            elif note.startswith("not run:"):
                left_out = " ".join(note.removeprefix("not run:").split())
            elif note.startswith("smaller\n"):
                pairs = (row.split(" => ") for row in note.splitlines()[1:])
                replaced = tuple((old, new) for old, new in pairs)
            elif note.strip() == "not output":
                output = False
            continue
        yield Block(line, part["kind"], part["code"], left_out, output, replaced)
        left_out, output, replaced = "", True, ()


def play(page: Path) -> None:
    """Run all of a page here; raises if anything fails, or prints something else than the page says."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    sys.path.insert(0, os.getcwd())
    for block in blocks(page.read_text()):
        place = f"{page.name}, line {block.line}"
        if block.left_out:
            continue
        if block.kind in ("python", "hidden"):
            file = re.match(r"# (\w+\.py)\n", block.code)
            if file:
                Path(file[1]).write_text(block.code)
                continue
            code = compile("\n" * block.line + block.run, str(page), "exec")
            with _captured() as output:
                exec(code, names)
            printed = output.pop()
        elif block.kind == "sh":
            ended = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.run],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            printed = ended.stdout
            assert ended.returncode == 0, f"{place}: exit code {ended.returncode}\n{printed}"
        elif block.kind == "text" and block.output:
            differ(block.code, printed, place)
        elif block.kind == "json":
            json.loads(block.code)
        elif block.kind == "toml":
            tomllib.loads(block.code)


def differ(shown: str, printed: str, place: str) -> None:
    """`AssertionError` unless the lines that a page shows are in what was printed, in that order."""
    lines = iter(printed.splitlines())
    for expected in filter(None, map(str.strip, shown.splitlines())):
        pattern = ".*".join(map(re.escape, expected.split("…")))
        assert any(re.search(pattern, line) for line in lines), f"{place}: no line {expected!r} in\n{printed}"


@contextmanager
def _captured() -> Iterator[list[str]]:
    """What is printed meanwhile, by this process and by those that it starts."""
    found: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        saved = [os.dup(1), os.dup(2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield found
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in zip((1, 2), saved, strict=True):
                os.dup2(old, number)
                os.close(old)
            file.seek(0)
            found.append(file.read())
            if sys.exc_info()[0] is not None:
                sys.stderr.write(found[0])


if __name__ == "__main__":
    play(Path(sys.argv[1]))
