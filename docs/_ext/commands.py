"""The directive `{commands}`: every command of `tramark` with its arguments and options, read from the program."""

from collections.abc import Iterator
from typing import Any

import typer
from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tramark.cli import app


def pages(name: str, command: Any) -> Iterator[str]:
    """The Markdown of a command and of those below it."""
    if children := getattr(command, "commands", {}):
        if " " in name:
            yield f"## {name}\n\n{command.help}\n"
        for child, below in children.items():
            yield from pages(f"{name} {child}", below)
        return
    level = "##" if name.count(" ") == 1 else "###"
    context = typer.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"{level} {name}\n\n{_text(command.help)}\n\n```text\n{usage}\n```\n"
    rows = [row for parameter in command.params if (row := _row(parameter, context))]
    if rows:
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows]) + "\n"
    if command.epilog:
        yield _codes(command.epilog)


def _row(parameter: Any, context: Any) -> str:
    record = parameter.get_help_record(context)
    if record is None or getattr(parameter, "hidden", False):
        return ""
    names, meaning = (part.replace("|", "\\|") for part in record)
    return f"| `{names}` | {_text(meaning)} |"


def _codes(epilog: str) -> str:
    """Exit codes as a table: the epilog has one a paragraph."""
    title, *lines = (line.strip() for line in epilog.split("\n\n"))
    rows = [f"| {code} | {meaning.strip()} |" for code, _, meaning in (line.partition(" ") for line in lines)]
    return "\n".join([title, "", "| code | meaning |", "|---|---|", *rows]) + "\n"


def _text(help: str | None) -> str:
    """Help as Markdown: brackets and angles are not markup. Typer has escaped some brackets already."""
    return (
        (help or "").replace("\\[", "[").replace("<", "\\<").replace("[", "\\[").replace("*", "\\*").replace("_", "\\_")
    )


class Commands(SphinxDirective):
    def run(self) -> list[Node]:
        text = "\n".join(pages("tramark", typer.main.get_command(app)))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(sphinx: Sphinx) -> dict[str, bool]:
    sphinx.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
