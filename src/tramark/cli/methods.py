"""`tramark methods`: a table of the methods and what each of them can do."""

import json
from typing import Annotated

import typer


def methods(as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False) -> None:
    """Compare all methods: what each needs, and what it can say about a suspect."""
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    from tramark.lab.methods import METHODS
    from tramark.lab.methods.table import ABSENT, COLUMNS, columns, summary

    if as_json:
        rows = {name: columns(method) | {"summary": summary(method)} for name, method in METHODS.items()}
        typer.echo(json.dumps(rows, indent=2))
        return
    headings = (Column(name.replace("_", "\n"), justify="center", no_wrap=True) for name in COLUMNS)
    table = Table(Column("method", no_wrap=True), *headings, box=box.SIMPLE_HEAD)
    for name, method in METHODS.items():
        has = columns(method)
        table.add_row(name, *("✓" if has[column] else "" for column in COLUMNS))
    about = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
    for name, method in METHODS.items():
        about.add_row(name, summary(method))
    Console().print(table, about, *(f"\nNot compared: {name}. It {why}." for name, why in ABSENT.items()))
