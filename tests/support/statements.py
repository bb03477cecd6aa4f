"""Closed cases, and what an operator could make of their statements and annexes."""

import hashlib
import json
from typing import Any

from traces import leaked_by

from tramark.evidence.case import RULE, Asked, Case, Closed, Suspected
from tramark.evidence.commitment import canonical
from tramark.evidence.statement import envelope_of
from tramark.tracing.handover import make_annex, make_statement
from tramark.tracing.trace import trace
from tramark.tracing.verdict import Verdict
from tramark.vault.storage import now
from tramark.vault.store import Vault

FILE = Suspected("file", "model.onnx", "5e" * 32)


def closed(vault: Vault, verdict: Verdict, suspect: Suspected = FILE, **fields: Any) -> Case:
    """The record of a verdict, as if it had been traced with the vault."""
    keyring, opened = vault.keyring, now()
    assert verdict.false_accusation_bound is not None
    plain = {
        "number": 1,
        "opened": opened,
        "suspect": suspect,
        "conventions": {"shape": [1, 28, 28], "scale": "1/255"},
        "false_accusation": verdict.false_accusation_bound,
        "spent": verdict.false_accusation_bound,
        "rule": RULE,
        "commitment": vault.commitments[-1].digest,
        "head": vault.head,
        "clients": len(keyring.clients),
        "classes": keyring.classes,
        "variants": keyring.held_out_variants,
        "order": keyring.chosen,
        "common": keyring.common,
        "burned": {"hospital-9": (keyring.chosen[0],)},
        "asked": tuple(Asked(*step[:3], opened) for step in verdict.transcript),
        "closed": Closed(now(), verdict.finding, verdict.clients, verdict.by_company, verdict.premise),
    }
    return Case(**{**plain, **fields})


def handed_over(vault: Vault, case: Case, time: str | None = None) -> tuple[bytes, bytes]:
    """A case's statement and annex."""
    return make_statement(vault, case, time=time).text(), make_annex(vault, case)


def traced(vault: Vault, *clients: str, **options: Any) -> Case:
    """The record of a trace of a model that these clients leaked."""
    return closed(vault, trace(leaked_by(vault.keyring, *clients), vault.keyring, **options))


def said(statement: bytes) -> dict[str, Any]:
    """The values of a statement."""
    import base64

    plain: dict[str, Any] = json.loads(base64.b64decode(json.loads(statement)["payload"]))
    return plain


def resigned(vault: Vault, statement: dict[str, Any], annex: dict[str, Any] | None = None) -> tuple[bytes, bytes]:
    """A statement signed with the vault's key, and the annex that it names."""
    text = b"" if annex is None else canonical(annex)
    if annex is not None:
        statement["predicate"]["annex"]["sha256"] = hashlib.sha256(text).hexdigest()
    return vault.signed(envelope_of(statement)).text(), text
