"""`tramark data`: which data sets there are, and how to get them."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tramark.cli.common import console
from tramark.lab import data

app = typer.Typer(help="The data sets that can be trained on.", no_args_is_help=True)


@app.command("list")
def show() -> None:
    """Show which data sets there are, and which are here already."""
    table = Table("name", "what", "classes", "cached")
    for entry in data.available():
        table.add_row(entry.name, entry.what, str(entry.classes), "yes" if entry.cached else "")
    Console().print(table)


@app.command()
def get(name: Annotated[str, typer.Argument(help="A name from `tramark data list`.")]) -> None:
    """Fetch a data set from whichever source answers, check it, and keep it."""
    with console.status(f"fetching {name}"):
        path = data.get(name)
    typer.echo(path)
