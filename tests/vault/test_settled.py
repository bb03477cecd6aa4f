"""Answers are committed to before models with marks are issued: the vault sees to it, audits and verifiers check it."""

from pathlib import Path

import pytest
from statements import handed_over
from traces import leaked_by, ring, vault_of

from tramark.errors import BadProof, VaultError
from tramark.evidence.commitment import verify_answers, verify_chain
from tramark.evidence.reader import Known
from tramark.evidence.settled import Settled
from tramark.evidence.verify import verify_statement
from tramark.tracing.trace import trace
from tramark.vault.log import issued
from tramark.vault.store import Vault

MARKED = issued(1, "hospital-1", "0" * 64, marked=True)
LATER = range(29, 5, -1)


def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator's own version, which lets questions be chosen at any time."""
    monkeypatch.setattr(Vault, "_check_choice", lambda *_: None)


def convicted(vault: Vault) -> tuple[tuple[bytes, bytes], bytes]:
    """The statement and the annex of a case, and the log."""
    case = trace(leaked_by(vault.keyring, "hospital-3"), vault).case
    assert case is not None
    return handed_over(vault, case), (vault.path / "log.jsonl").read_bytes()


def test_no_other_questions_are_chosen_when_models_with_marks_are_out(tmp_path: Path) -> None:
    with vault_of(ring(questions=24, pool=30), tmp_path) as vault:
        vault.record([issued(0, "hospital-1", "0" * 64, marked=False)])
        vault.save_keyring(vault.keyring.choose(LATER))
        vault.record([MARKED])
        with pytest.raises(VaultError, match="make a new vault"):
            vault.save_keyring(vault.keyring.choose(range(24)))
        vault.save_keyring(vault.keyring.join("late"))
        assert vault.audit() == []


def test_an_audit_and_a_verifier_see_answers_that_were_settled_after_the_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless(monkeypatch)
    with vault_of(ring(questions=24, pool=30), tmp_path) as vault:
        vault.record([MARKED])
        assert vault.audit() == []
        vault.save_keyring(vault.keyring.choose(LATER))
        assert vault.audit() == ["log.jsonl: entry 1 issues a marked model before the answers in use were committed to"]
        monkeypatch.setattr(Vault, "audit", lambda _: [])
        evidence, log = convicted(vault)
    with pytest.raises(BadProof, match="committed to too late"):
        verify_statement(*evidence, Known(log=log))


def test_a_verifier_with_the_log_sees_that_answers_came_first(tmp_path: Path) -> None:
    with vault_of(ring(questions=24, pool=30), tmp_path) as vault:
        vault.save_keyring(vault.keyring.choose(LATER))
        vault.record([MARKED])
        evidence, log = convicted(vault)
    found = verify_statement(*evidence, Known(log=log))
    assert any("before the answers in it were committed to" in sentence for sentence in found.proven)


def test_a_client_is_not_marked_before_its_own_answers_are_committed_to(tmp_path: Path) -> None:
    with vault_of(ring(questions=24, pool=30), tmp_path) as vault:
        early = issued(1, "late", "0" * 64, marked=True)
        vault.save_keyring(vault.keyring.join("late"))
        vault.record([early])
        assert vault.audit() == []
        entries, links = list(vault.log()), vault.commitments
        vault.record([issued(1, "stranger", "0" * 64, marked=True)])
        assert [problem.partition(": ")[2] for problem in vault.audit()] == [
            "entry 3 issues a marked model to a client whose answers were not committed to"
        ]
    order = Settled(links)
    for entry in (entries[0], entries[2]):
        order.read(entry)
    assert order.late == "entry 2 issues a marked model to a client whose answers were not committed to"


def test_questions_that_are_chosen_again_have_one_set_of_answers(tmp_path: Path) -> None:
    """An operator who may choose back and forth must not have several commitments to pick from."""
    with vault_of(ring(questions=24, pool=30), tmp_path) as vault:
        first = vault.prove_answers("hospital-1", [3])
        assert verify_answers(first, vault.commitments)
        vault.save_keyring(vault.keyring.choose(LATER))
        vault.save_keyring(vault.keyring.choose(range(24)))
        links = vault.commitments
        verify_chain(links)
        assert links[0].chosen == links[2].chosen
        with pytest.raises(BadProof, match="replaced since"):
            verify_answers(first, links)
        assert verify_answers(vault.prove_answers("hospital-1", [3]), links)


@pytest.mark.parametrize("wrong", [{}, {"clients": 1}, {"clients": [{}], "client": []}])
def test_whatever_stands_in_a_log_is_read(tmp_path: Path, wrong: dict[str, object]) -> None:
    with vault_of(ring(questions=24, pool=30), tmp_path) as vault:
        created, links = next(vault.log()), vault.commitments
    order = Settled(links)
    order.read({"event": "created", "n": 0, "commitment": created["commitment"], **wrong})
    order.read({"event": "issued", "n": 1, "marked": True, **wrong})
    assert order.late == "entry 1 issues a marked model to a client whose answers were not committed to"
