"""The command line: parse, call, show."""

import sys
from typing import Annotated

import typer

from tramark import __version__
from tramark.cli import data, trace, vault
from tramark.cli.attack import attack
from tramark.cli.common import console
from tramark.cli.methods import methods
from tramark.cli.run import demo, run
from tramark.errors import BadProof, SuspectError, VaultError

app = typer.Typer(
    help="Find out who leaked a federation's model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(demo)
app.command()(methods)
app.command("trace")(trace.trace_command)
app.command()(attack)
app.command()(trace.export)
app.add_typer(trace.evidence, name="evidence")
app.add_typer(vault.app, name="vault")
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; what a user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except (ValueError, KeyError, OSError, VaultError, SuspectError, BadProof) as error:
        line = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
        console.print(f"tramark: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
