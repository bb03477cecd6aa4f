"""What a vault keeps of a server's rounds, and what it says of the marks that were issued."""

import json
from pathlib import Path
from typing import Any

import pytest
from traces import CLIENTS, ring, vault_of

from tramark.evidence.premise import Premise
from tramark.marks.survival import QUESTIONS
from tramark.vault.log import issued
from tramark.vault.reports import ASKED, premise_of
from tramark.vault.store import Vault

MARKED: dict[str, Any] = {"marked": True, "used": ("a",), "refused": {}}


def survived(round: int, *shares: float) -> dict[str, Any]:
    clients = {f"client {i}": share for i, share in enumerate(shares)}
    return MARKED | {"round": round, "survived": {"clients": clients, "margin": 1.0}}


def test_reports_come_back_whatever_they_hold(tmp_path: Path) -> None:
    keyring = ring()
    with vault_of(keyring, tmp_path) as vault:
        assert vault.reports() == []
        for round in (1, 2, 3):
            vault.save(keyring, {"round": round}, {"round": round, "cost": {"kl": 0.25}, "used": ("a", "b")})
        # A round that is played again replaces what came after it, and so does one that is saved again.
        vault.save(keyring, {"round": 2}, {"round": 2, "used": ()})
        vault.save(keyring, {"round": 2}, {"round": 2, "used": ()})
        vault.save(keyring, {"round": 2})
        path = vault.path
    with Vault.open(path, readonly=True) as vault:
        assert vault.reports() == [{"round": 1, "cost": {"kl": 0.25}, "used": ["a", "b"]}, {"round": 2, "used": []}]
        assert vault.audit() == []


def test_a_vault_knows_whether_marks_were_issued(tmp_path: Path) -> None:
    with vault_of(ring(), tmp_path) as vault:
        assert vault.premise() == Premise(issued=False)
        vault.record([issued(1, client, "0" * 64, marked=False) for client in CLIENTS])
        assert vault.premise() == Premise(issued=False)
        vault.record([issued(2, CLIENTS[0], "1" * 64, marked=True)])
        assert vault.premise() == Premise()


@pytest.mark.parametrize(("models", "marked"), [("00", False), ("01", True), ("0", False)])
def test_entries_of_early_versions_are_compared(models: str, marked: bool) -> None:
    entries = [{"event": "created"}, issued(1, "a", "x")]
    entries += [issued(2, f"client {i}", model) for i, model in enumerate(models)]
    assert premise_of([], entries, 10).issued is marked


def test_the_golden_vault_has_issued_marks() -> None:
    golden = Path(__file__).parents[1] / "golden" / "v1" / "vault" / "log.jsonl"
    entries = [json.loads(line) for line in golden.read_text().splitlines()]
    assert premise_of([], entries, 10) == Premise()


@pytest.mark.parametrize(
    ("reports", "surviving"),
    [
        # The fewer clients were asked, the less is known.
        ([survived(1, *[1.0] * 5)], 0.89),
        ([survived(1, 1.0)], 0.62),
        ([survived(1, *[0.75] * 5)], 0.54),
        ([survived(1, 0.55, 0.37)], 0.16),
        ([survived(1, 0.05)], 0.0),
        ([survived(1, 0.2), *(survived(round, 0.9) for round in range(2, 6))], 0.0),
        # A bad round that is long ago counts no more.
        ([survived(1, 0.2), *(survived(round, 0.9) for round in range(2, 7))], 0.49),
        ([survived(1, 0.9), MARKED | {"round": 2, "survived": None}], 0.49),
    ],
)
def test_the_smallest_recent_survival_counts_without_what_is_right_by_chance(
    reports: list[dict[str, Any]], surviving: float
) -> None:
    assert premise_of(reports, [], 10) == Premise(surviving=surviving, measured=True)


def test_with_two_labels_half_of_the_answers_are_chance() -> None:
    assert premise_of([survived(1, 0.6)], [], 2).surviving == 0.0
    assert premise_of([survived(1, *[1.0] * 5)], [], 2).surviving == 0.81


def test_survival_is_measured_by_as_many_answers_as_the_premise_takes_it_for() -> None:
    assert ASKED == QUESTIONS


def test_what_is_assumed_is_a_half_and_nothing_else() -> None:
    assert Premise.from_dict(Premise(surviving=0.89, measured=True).to_dict()).surviving == 0.89
    for wrong in (Premise(surviving=0.89), Premise(surviving=0.4), Premise(surviving=1.1, measured=True)):
        with pytest.raises(ValueError, match=r"^$"):
            Premise.from_dict(wrong.to_dict())
