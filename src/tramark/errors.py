"""Every error that a user can act on: one base class, one kind for each thing to do about it.

A message says what was wrong with which value, and what would be right. Whatever else is raised is a bug.
"""

from typing import Any


class TramarkError(Exception):
    """The base of all errors that tramark raises on purpose."""


class SettingError(TramarkError, ValueError):
    """A value that cannot work: change the setting, the argument or the input that the message names."""


class Diverged(SettingError):  # noqa: N818
    """A base that cannot be used: it, its answers or the marks for it are not finite."""


class UnknownClientError(TramarkError, KeyError):
    """A name that belongs to no client of the federation."""

    def __str__(self) -> str:
        # KeyError would show the message as a quoted key.
        return str(self.args[0])


class UpdateError(TramarkError, ValueError):
    """An update that cannot be used: which client's, and why."""

    def __init__(self, client: str, reason: str) -> None:
        super().__init__(f"update of client {client!r} refused: {reason}")
        self.client = client
        self.reason = reason


class CheckpointError(TramarkError, ValueError):
    """A saved state that does not belong to this federation, or is damaged."""


class DataError(TramarkError, ValueError):
    """A data set that is unknown, cannot be had, or is not what it should be."""


class SuspectError(TramarkError):
    """A suspect that cannot be asked, or cannot be believed.

    `answers` are those that the suspect gave to the failed call, if any. `trace` sets `transcript`: every query so far
    (a tuple of `Step`); and `case`: the number of the case, which a later trace goes on with.
    """

    answers: Any = None
    transcript: tuple[Any, ...] = ()
    case: int | None = None


class SuspectUnavailable(SuspectError):  # noqa: N818
    """The suspect did not answer this time, after all retries. It may later. `status` is what its server answered."""

    status: int | None = None


class BudgetSpent(SuspectError):  # noqa: N818
    """The suspect may be asked no more: the query budget is spent."""


class BadProof(TramarkError):  # noqa: N818
    """A signature, a chain of commitments or an opening that does not hold."""


class Unreadable(BadProof):
    """A file that is no evidence, or of a version that is not known."""


class VaultError(TramarkError):
    """A vault that cannot do what was asked of it."""


class WrongKey(VaultError):  # noqa: N818
    """The passphrase or key file does not open the vault."""


class NoKey(VaultError):  # noqa: N818
    """No passphrase and no key file was given or found."""


class VaultBusy(VaultError):  # noqa: N818
    """Another process is writing to the vault."""


class Damaged(VaultError):  # noqa: N818
    """A file of the vault is missing or is not what a holder of the key wrote."""


class ErrorSpent(VaultError):  # noqa: N818
    """A trace that would spend more error than the vault's limit allows over its life."""


class UnsupportedSystem(VaultError, ImportError):  # noqa: N818
    """This operating system cannot keep a vault."""


def one_line(error: BaseException | str, limit: int = 160) -> str:
    """An error of somebody else's making, short and harmless to a terminal.

    >>> one_line(ValueError("two\\nlines"))
    'two lines'
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    if not text and isinstance(error, BaseException):
        text = type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
