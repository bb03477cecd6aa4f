"""What a user sees when a command fails: one line for what the user can mend, and two for a bug in tramark."""

import errno
import traceback

from tramark.cli.common import BUG, FORGED, INTERRUPTED, MISTAKE, REFUSED, UNREACHABLE, UNREADABLE, console
from tramark.errors import (
    BadProof,
    BudgetSpent,
    Damaged,
    ErrorSpent,
    NoKey,
    SuspectUnavailable,
    TramarkError,
    Unreadable,
    VaultBusy,
    WrongKey,
    one_line,
)


def exit_code_for(error: Exception | SystemExit, *, debug: bool) -> int | str | None:
    """Says what went wrong, and gives the exit code for it. `debug` shows the traceback first."""
    if isinstance(error, SystemExit):
        if error.code == INTERRUPTED:
            _say("tramark: interrupted")
        return error.code
    if debug:
        console.print("".join(traceback.format_exception(error)), markup=False, highlight=False, soft_wrap=True, end="")
    if isinstance(error, TramarkError):
        _say(f"tramark: {_flat(str(error))}")
        if isinstance(error, BadProof):
            return UNREADABLE if isinstance(error, Unreadable) else FORGED
        return code_of(error)
    if isinstance(error, OSError) and error.errno is not None:
        files = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        what = error.strerror or errno.errorcode.get(error.errno, "error")
        _say(f"tramark: {_flat(f'{files}: {what}' if files else what)}")
        return MISTAKE
    _say(f"tramark: this is a bug in tramark: {type(error).__name__}: {one_line(error, 1000)}")
    if not debug:
        _say("Run the command again with --debug to see the traceback, and please report it.")
    else:
        _say("Please report it with the traceback above.")
    return BUG


def code_of(error: TramarkError) -> int:
    """The exit code for an error of tramark's that is not about evidence."""
    if isinstance(error, (SuspectUnavailable, BudgetSpent)):
        return UNREACHABLE
    if isinstance(error, (WrongKey, NoKey, VaultBusy, Damaged, ErrorSpent)):
        return REFUSED
    return MISTAKE


def _flat(text: str) -> str:
    return " ".join(text.split())


def _say(line: str) -> None:
    console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
