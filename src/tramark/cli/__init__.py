"""The command line: parse, call, show.

A command's module loads typer and little else. torch, the laboratory and the vault are imported in the body of the
command that needs them, so that help texts and checks start fast.
"""

import sys
from typing import Annotated

import typer

from tramark import __version__
from tramark.cli import data, evidence, study, vault
from tramark.cli.attack import attack
from tramark.cli.common import EPILOG
from tramark.cli.export import export
from tramark.cli.failures import exit_code_for
from tramark.cli.methods import methods
from tramark.cli.probe import probe_command
from tramark.cli.run import demo, run
from tramark.cli.trace import trace_command
from tramark.cli.web import web

app = typer.Typer(
    help="Find out who leaked a federation's model.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(demo)
app.command()(methods)
app.command("trace", epilog=EPILOG)(trace_command)
app.command("probe")(probe_command)
app.command()(web)
app.command()(attack)
app.command()(export)
app.add_typer(evidence.app, name="evidence")
app.add_typer(vault.app, name="vault")
app.add_typer(data.app, name="data")
app.add_typer(study.app, name="study")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. May also follow the command.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line and exits with one of the codes in `common.EXIT_CODES`."""
    words = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(words) < len(sys.argv) - 1
    try:
        app(words, prog_name="tramark")
    except (Exception, SystemExit) as error:
        sys.exit(exit_code_for(error, debug=debug))
