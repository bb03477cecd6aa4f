"""`tramark data`: list and download the data sets."""

from typing import Annotated

import typer

from tramark.cli.common import console

app = typer.Typer(help="List and download the data sets that a simulation can train on.", no_args_is_help=True)


@app.command("list")
def show() -> None:
    """List all data sets, and say which are on this machine already."""
    from rich.console import Console
    from rich.table import Table

    from tramark.lab import data

    table = Table("name", "what", "classes", "cached")
    for entry in data.available():
        table.add_row(entry.name, entry.what, str(entry.classes), "yes" if entry.cached else "")
    Console().print(table)


@app.command()
def get(name: Annotated[str, typer.Argument(help="A name from `tramark data list`.")]) -> None:
    """Download a data set into the cache, check it, and print the path of its file."""
    from tramark.lab import data

    with console.status(f"fetching {name}"):
        path = data.get(name)
    typer.echo(path)
