"""Write evidence bundles as versions before statements did, to test that they are still checked."""

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tramark.errors import BadProof, SettingError
from tramark.evidence.bundle import FORMAT, RULE, verify_bundle
from tramark.evidence.commitment import canonical
from tramark.tracing.verdict import Verdict

if TYPE_CHECKING:
    from tramark.vault.store import Vault


def make_bundle(
    vault: "Vault", verdict: Verdict, *, suspect: str, notes: str = "", time: str | None = None
) -> dict[str, Any]:
    """The signed evidence for a verdict of `trace` with this vault's keyring.

    Parameters
    ----------
    suspect : a description of the suspect, such as a file's name and digest, or an address; never a token.
    notes : what else an opponent should know: the input conventions, how labels were mapped.
    time : the time of the trace, in ISO 8601 with a time zone; the present time by default.
    """
    if verdict.false_accusation_bound is None:
        raise SettingError("the rule of this verdict has no bound on false accusations: there is nothing to prove")
    if not verdict.transcript:
        raise SettingError("nothing was asked: there is no evidence to bundle")
    keyring = vault.keyring
    asked: dict[int, list[int]] = {}
    for step in verdict.transcript:
        asked.setdefault(step.question, []).append(keyring.variants("held-out")[step.variant])
    proofs = vault.prove_questions(asked)
    opened = keyring.clients if verdict.by_company else verdict.clients
    inputs = [keyring.asked(step.question, step.variant).numpy() for step in verdict.transcript]
    body = {
        "format": FORMAT,
        "time": time or datetime.now(UTC).isoformat(timespec="seconds"),
        "suspect": suspect,
        "notes": notes,
        "verdict": {
            "verdict": verdict.finding,
            "clients": verdict.clients,
            "queries": verdict.queries,
            **({} if verdict.clients else {"premise": verdict.premise.to_dict()}),
        },
        "parameters": {
            "rule": RULE,
            "false_accusation_bound": repr(verdict.false_accusation_bound),
            "clients": len(keyring.clients),
            "classes": keyring.classes,
            "variants": keyring.held_out_variants,
        },
        "input": {"dtype": inputs[0].dtype.name, "shape": inputs[0].shape},
        "transcript": [
            {
                "question": step.question,
                "variant": step.variant,
                "answer": step.answer,
                "input": base64.b64encode(raw.tobytes()).decode(),
            }
            for step, raw in zip(verdict.transcript, inputs, strict=True)
        ],
        "commitments": [commitment.to_dict() for commitment in vault.commitments],
        "questions": proofs[0],
        "answers": [vault.prove_answers(client, asked) for client in opened],
    }
    bundle: dict[str, Any] = json.loads(canonical(body | {"signature": vault.sign("evidence", canonical(body))}))
    try:
        verify_bundle(bundle)
    except BadProof as error:
        raise SettingError(f"this verdict does not follow from this vault: {error}") from None
    return bundle
