"""Verdicts of every kind, for the tests of the report."""

from collections.abc import Callable
from pathlib import Path

from statements import closed
from traces import Oracle, in_company, leaked_by

from tramark.evidence.case import Suspected
from tramark.keys.keyring import Keyring
from tramark.report.written import write_report
from tramark.tracing.handover import findings_of, make_statement
from tramark.tracing.trace import trace
from tramark.tracing.verdict import Verdict
from tramark.vault.store import Vault

SUSPECT = "https://models.example/v2/scan <b>beta</b>"


def noisy(keyring: Keyring) -> Verdict:
    """A verdict that took a second look."""
    verdicts = (trace(leaked_by(keyring, "hospital-2", noise=0.5, seed=seed), keyring) for seed in range(50))
    return next(verdict for verdict in verdicts if verdict.clients and verdict.queries > keyring.questions)


CASES: dict[str, Callable[[Keyring], Verdict]] = {
    "client": lambda keyring: trace(leaked_by(keyring, "hospital-3", noise=0.2, seed=4), keyring),
    "second look": noisy,
    "several": lambda keyring: trace(
        leaked_by(keyring, "hospital-1", "hospital-8"), keyring, exhaustive=True, false_accusation=0.01
    ),
    "company": in_company,
    "nobody": lambda keyring: trace(Oracle(keyring, lambda q, v: 0), keyring, false_accusation=0.3),
    "inconclusive": lambda keyring: trace(leaked_by(keyring, "hospital-3"), keyring, budget=6),
    "no answers": lambda keyring: trace(Oracle(keyring, lambda q, v: -1), keyring),
    "paper": lambda keyring: trace(leaked_by(keyring, "hospital-3", noise=0.4), keyring, rule="paper"),
}


def reported(vault: Vault, verdict: Verdict, folder: Path) -> str:
    """The page of a verdict's report, which is written to a folder."""
    statement = findings = None
    if verdict.false_accusation_bound:
        case = closed(vault, verdict, Suspected("address", SUSPECT))
        statement = make_statement(vault, case)
        findings = findings_of(vault, case, statement)
    path = write_report(folder, verdict, vault.keyring, suspect=SUSPECT, statement=statement, findings=findings)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")
