"""What the pages about a vault and its cases show, as plain values: no secret is among them."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from tramark.errors import TramarkError
from tramark.evidence.case import RULES, Case
from tramark.evidence.commitment import signers
from tramark.evidence.findings import fingerprint
from tramark.evidence.published import utc
from tramark.keys.keyring import Keyring
from tramark.report.charts import survival_chart
from tramark.report.page import report_page, report_values
from tramark.tracing.handover import findings_of, make_statement
from tramark.tracing.recorded import keyring_of, verdict_of
from tramark.vault.reports import survival_of
from tramark.vault.store import Vault

Values = dict[str, Any]


def cases_of(vault: Vault) -> Values:
    """All cases, the newest first, and the error that they spend."""
    book = vault.cases
    rows = [
        {
            "number": case.number,
            "opened": utc(case.opened),
            "suspect": case.suspect.name,
            "remote": case.suspect.remote,
            "finding": "unfinished" if case.closed is None else case.closed.finding,
            "accused": () if case.closed is None else case.closed.clients,
            "queries": len(case.asked),
            "error": case.false_accusation,
        }
        for case in reversed(book.all())
    ]
    limit, spent = book.limit, book.spent
    return {"cases": rows, "spent": spent, "limit": limit}


def case_values(vault: Vault, keyring: Keyring, case: Case) -> Values:
    """A closed case as the report's `body.html.j2` shows it, with a problem in words if no statement can be made."""
    findings, problem = None, ""
    if case.rule in RULES and case.asked:
        try:
            findings = findings_of(vault, case, make_statement(vault, case))
        except TramarkError as error:
            problem = str(error)
    values = report_values(
        verdict_of(case, keyring),
        keyring_of(case, keyring),
        suspect=case.suspect.words,
        findings=findings,
        time=case.closed.time if case.closed else None,
    )
    return values | {"problem": problem, "provable": findings is not None}


def case_page(vault: Vault, keyring: Keyring, case: Case, *, auditor: str, notes: str, outside: bool) -> str:
    """The report of a closed case as a page that stands alone."""
    provable = case.rule in RULES and case.asked
    findings = findings_of(vault, case, make_statement(vault, case)) if provable else None
    return report_page(
        verdict_of(case, keyring),
        keyring_of(case, keyring),
        suspect=case.suspect.words,
        findings=findings,
        auditor=auditor,
        notes=notes,
        time=case.closed.time if case.closed else None,
        outside=outside,
    )


def vault_values(vault: Vault) -> Values:
    """What was issued to whom, what survives of it, and what else is known of a vault."""
    plain, entries, reports = vault.sealed_keyring, list(vault.log()), vault.reports()
    issued = [entry for entry in entries if entry["event"] == "issued"]
    burned, gone = vault.cases.burned, set(plain["departed"])
    last = reports[-1] if reports else {}
    left = ((last.get("survived") or {}).get("clients")) or {}
    by_client: dict[str, list[Any]] = {client: [] for client in plain["clients"]}
    for entry in issued:
        by_client.setdefault(entry["client"], []).append(entry)
    rounds = [
        {
            "round": report["round"],
            "clients": len(report.get("used", ())),
            "refused": len(report.get("refused", ())),
            "marked": bool(report.get("marked")),
            "mean": sum(found) / len(found) if (found := survival_of(report)) else None,
            "least": min(found, default=None),
        }
        for report in reports
    ]
    return {
        "id": vault.id,
        "simulated": vault.simulated,
        "keys": [fingerprint(key) for key in signers(vault.commitments)],
        "commitments": [{"number": link.number, "time": utc(link.time)} for link in vault.commitments],
        "entries": len(entries),
        "issued": len(issued),
        "clients": [
            {
                "name": client,
                "gone": client in gone,
                "models": len(models),
                "last": max((one["round"] for one in models), default=None),
                "marked": any(one.get("marked") for one in models),
                "burned": len(burned.get(client, ())),
                "survival": left.get(client),
            }
            for client, models in by_client.items()
        ],
        "rounds": rounds[::-1],
        "chart": _chart(rounds),
    }


def _chart(rounds: Sequence[Values]) -> Markup:
    measured = [(one["round"], one["mean"], one["least"]) for one in rounds if one["mean"] is not None]
    return Markup(survival_chart(measured)) if len(measured) > 1 else Markup("")
