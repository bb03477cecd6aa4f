"""Traces of suspects that give scores: who is named by them, how that is recorded and proven, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from statements import FILE, handed_over, resigned, said
from torch import Tensor
from traces import Oracle, ring, vault_of

from tramark.errors import BadProof
from tramark.evidence.case import Case
from tramark.evidence.reader import Known
from tramark.evidence.scores import LOWEST
from tramark.evidence.verify import verify_statement
from tramark.keys.keyring import Keyring
from tramark.report.page import report_page
from tramark.suspects.base import Answers
from tramark.tracing.recorded import verdict_of
from tramark.tracing.trace import trace
from tramark.vault.store import Vault

LEAKER = "hospital-3"


class Shifted(Oracle):
    """A leaked model whose labels training has moved: label 4 wins everywhere, and its own answers come second."""

    def __init__(self, keyring: Keyring, client: str, *, mark: float = 4.0) -> None:
        own = keyring.taught(client).answers
        super().__init__(keyring, lambda question, variant: own[question] if question < len(own) else 0)
        self.mark, self.generator = mark, torch.Generator().manual_seed(0)

    def ask(self, raw: Tensor) -> Answers:
        taught = super().ask(raw).labels
        logits = torch.randn(len(raw), 10, generator=self.generator)
        logits[torch.arange(len(raw)), taught] += self.mark
        logits[:, 4] += 20
        return Answers(logits.argmax(1), logits)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return vault_of(ring(), tmp_path)


def test_the_scores_name_whom_the_labels_do_not(vault: Vault) -> None:
    verdict = trace(Shifted(vault.keyring, LEAKER), vault)
    assert verdict.clients == verdict.by_scores == (LEAKER,)
    assert {step.answer for step in verdict.transcript} == {4}
    assert verdict.e_values[LEAKER] >= 10 / 1e-6
    assert verdict.queries == vault.keyring.questions, "no other variants are asked"
    assert verdict.matches[LEAKER] < 8


def test_without_a_mark_they_name_nobody(vault: Vault) -> None:
    for mark in (0.0, -4.0):
        verdict = trace(Shifted(vault.keyring, LEAKER, mark=mark), vault)
        assert verdict.clients == verdict.by_scores == ()
        assert max(verdict.e_values.values()) < 10 / 1e-6


def test_the_case_keeps_them_and_weighs_them_again(vault: Vault) -> None:
    verdict = trace(Shifted(vault.keyring, LEAKER), vault)
    assert verdict.case is not None
    assert vault.cases.all() == [verdict.case] == [Case.from_dict(json.loads(json.dumps(verdict.case.to_dict())))]
    assert verdict.case.scores.keys() == {(step.question, 0) for step in verdict.transcript}
    again = verdict_of(verdict.case, vault.keyring)
    assert (again.clients, again.by_scores, again.e_values) == (verdict.clients, verdict.by_scores, verdict.e_values)


def test_the_statement_is_proven_by_its_annex(vault: Vault) -> None:
    case = trace(Shifted(vault.keyring, LEAKER), vault).case
    assert case is not None
    statement, annex = handed_over(vault, case)
    findings = verify_statement(statement, annex, Known(published=vault.commitments))
    assert (findings.clients, findings.holds) == ((LEAKER,), True)
    assert findings.e_values[LEAKER] >= findings.needed


@pytest.mark.parametrize("change", ["moved to another label", "left out", "too low", "of an earlier rule"])
def test_changed_scores_prove_nothing(vault: Vault, change: str) -> None:
    case = trace(Shifted(vault.keyring, LEAKER), vault, suspected=FILE).case
    assert case is not None
    statement, annex = handed_over(vault, case)
    plain, opened = said(statement), json.loads(annex)
    for asked in opened["case"]["asked"]:
        if change == "moved to another label":
            asked[4] = asked[4][::-1]
        elif change == "left out":
            del asked[4]
        elif change == "too low":
            asked[4][0] = LOWEST - 1
    if change == "of an earlier rule":
        opened["case"]["rule"] = plain["predicate"]["rule"] = "e-values 3"
    with pytest.raises(BadProof, match=r"does not suffice|not a well-formed"):
        verify_statement(*resigned(vault, plain, opened))


def test_cases_of_the_earlier_rule_are_proven_as_before(vault: Vault) -> None:
    case = trace(Oracle(vault.keyring, lambda q, v: vault.keyring.taught(LEAKER).answers[q]), vault).case
    assert case is not None
    findings = verify_statement(*handed_over(vault, replace(case, rule="e-values 3")))
    assert findings.clients == (LEAKER,)


def test_the_report_says_that_labels_alone_do_not_suffice(vault: Vault) -> None:
    verdict = trace(Shifted(vault.keyring, LEAKER), vault)
    page = report_page(verdict, vault.keyring, suspect="model.onnx")
    assert "Its labels alone do not show that of hospital-3; its scores do." in page
    assert "For hospital-3 the labels alone do not suffice." in page
