"""The files of a report. They are evidence: an earlier report is never overwritten."""

import secrets
from pathlib import Path

from tramark.errors import SettingError
from tramark.evidence.dsse import Envelope
from tramark.evidence.findings import Findings
from tramark.keys.keyring import Keyring
from tramark.report.page import PAGE, PUBLIC, STATEMENT, report_page
from tramark.tracing.verdict import Verdict
from tramark.vault.files import sync_directory, write_new


def check_folder(folder: Path) -> None:
    """Raises an error unless a report can be written to a folder, which is made if it is missing.

    Call it before the first question: what was asked cannot be taken back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (PAGE, PUBLIC, STATEMENT):
        if (folder / name).is_symlink() or (folder / name).exists():
            raise SettingError(
                f"{folder / name} exists already, and a report is never overwritten: give another folder"
            )
    trial = folder / f".{secrets.token_hex(8)}.tmp"
    write_new(trial, [])
    trial.unlink()


def write_report(
    folder: str | Path,
    verdict: Verdict,
    keyring: Keyring,
    *,
    suspect: str,
    statement: Envelope | None = None,
    findings: Findings | None = None,
    auditor: str = "",
    notes: str = "",
    time: str | None = None,
) -> Path:
    """Writes `report.html`, `public.html` and, if there is one, `statement.json` into a folder; returns the first.

    Only their owner can read them: hand them out as you see fit. `SettingError` if one of them exists already.

    Parameters
    ----------
    verdict, keyring : of one `trace`.
    suspect : how the suspect is described; never a token.
    statement, findings : from `make_statement` and `findings_of`; None for a rule without a bound.
    auditor, notes : who made the report, and what else there is to say. They are in the pages, and nobody signs them.
    time : when the suspect was asked. The findings' own comes first.
    """
    folder = Path(folder)
    files = {
        name: report_page(
            verdict,
            keyring,
            suspect=suspect,
            findings=findings,
            auditor=auditor,
            notes=notes,
            time=time,
            outside=outside,
        ).encode()
        for name, outside in ((PAGE, False), (PUBLIC, True))
    }
    if statement is not None:
        files[STATEMENT] = statement.text()
    check_folder(folder)
    for name, data in files.items():
        write_new(folder / name, [data])
    sync_directory(folder)
    return folder / PAGE
