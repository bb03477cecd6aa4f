"""tramark: find out who leaked a federation's model.

Names are imported when they are first used, so that `import tramark` loads neither torch nor anything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tramark.errors import (
        BadProof,
        BudgetSpent,
        CheckpointError,
        Damaged,
        DataError,
        ErrorSpent,
        NoKey,
        SettingError,
        SuspectError,
        SuspectUnavailable,
        TramarkError,
        UnknownClientError,
        Unreadable,
        UpdateError,
        VaultBusy,
        VaultError,
        WrongKey,
    )
    from tramark.evidence.bundle import verify_bundle
    from tramark.evidence.case import Case, Suspected
    from tramark.evidence.findings import Findings
    from tramark.evidence.published import read_published
    from tramark.evidence.reader import Known
    from tramark.evidence.verify import verify_statement
    from tramark.fleet.layout import extend_head
    from tramark.keys.keyring import Key, Keyring
    from tramark.keys.pictures import LabelledImages, Patterns, WafflePatterns
    from tramark.keys.sources import Source, Tokens, Vectors
    from tramark.marks.closed_form import ClosedForm
    from tramark.marks.gradient import GradientSteps
    from tramark.marks.rounds import RoundReport
    from tramark.server import TraMark
    from tramark.suspects.base import Answers, Suspect
    from tramark.suspects.conventions import Conventions
    from tramark.suspects.files import open_suspect
    from tramark.suspects.http import HttpOptions
    from tramark.suspects.json_api import JsonTemplate
    from tramark.tracing.handover import hand_over, make_statement
    from tramark.tracing.interview import Step
    from tramark.tracing.suspected import suspected_at
    from tramark.tracing.trace import trace
    from tramark.tracing.verdict import Verdict
    from tramark.vault.audit import audit
    from tramark.vault.lock import make_key_file
    from tramark.vault.store import Vault

__version__ = "0.1.0"

_ERRORS = (
    "BadProof",
    "BudgetSpent",
    "CheckpointError",
    "Damaged",
    "DataError",
    "ErrorSpent",
    "NoKey",
    "SettingError",
    "SuspectError",
    "SuspectUnavailable",
    "TramarkError",
    "UnknownClientError",
    "Unreadable",
    "UpdateError",
    "VaultBusy",
    "VaultError",
    "WrongKey",
)
_HOMES = dict.fromkeys(_ERRORS, "errors") | {
    "Answers": "suspects.base",
    "Case": "evidence.case",
    "ClosedForm": "marks.closed_form",
    "Conventions": "suspects.conventions",
    "Findings": "evidence.findings",
    "GradientSteps": "marks.gradient",
    "HttpOptions": "suspects.http",
    "JsonTemplate": "suspects.json_api",
    "Key": "keys.keyring",
    "Keyring": "keys.keyring",
    "Known": "evidence.reader",
    "LabelledImages": "keys.pictures",
    "Patterns": "keys.pictures",
    "RoundReport": "marks.rounds",
    "Source": "keys.sources",
    "Step": "tracing.interview",
    "Suspect": "suspects.base",
    "Suspected": "evidence.case",
    "Tokens": "keys.sources",
    "TraMark": "server",
    "Vault": "vault.store",
    "Vectors": "keys.sources",
    "Verdict": "tracing.verdict",
    "WafflePatterns": "keys.pictures",
    "audit": "vault.audit",
    "extend_head": "fleet.layout",
    "hand_over": "tracing.handover",
    "make_key_file": "vault.lock",
    "make_statement": "tracing.handover",
    "open_suspect": "suspects.files",
    "read_published": "evidence.published",
    "suspected_at": "tracing.suspected",
    "trace": "tracing.trace",
    "verify_bundle": "evidence.bundle",
    "verify_statement": "evidence.verify",
}

__all__ = [
    "Answers",
    "BadProof",
    "BudgetSpent",
    "Case",
    "CheckpointError",
    "ClosedForm",
    "Conventions",
    "Damaged",
    "DataError",
    "ErrorSpent",
    "Findings",
    "GradientSteps",
    "HttpOptions",
    "JsonTemplate",
    "Key",
    "Keyring",
    "Known",
    "LabelledImages",
    "NoKey",
    "Patterns",
    "RoundReport",
    "SettingError",
    "Source",
    "Step",
    "Suspect",
    "SuspectError",
    "SuspectUnavailable",
    "Suspected",
    "Tokens",
    "TraMark",
    "TramarkError",
    "UnknownClientError",
    "Unreadable",
    "UpdateError",
    "Vault",
    "VaultBusy",
    "VaultError",
    "Vectors",
    "Verdict",
    "WafflePatterns",
    "WrongKey",
    "__version__",
    "audit",
    "extend_head",
    "hand_over",
    "make_key_file",
    "make_statement",
    "open_suspect",
    "read_published",
    "suspected_at",
    "trace",
    "verify_bundle",
    "verify_statement",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tramark' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"tramark.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
