"""Every trace with a vault is a case: bound to its suspect, counted over the life of the vault, and no oracle."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from traces import CLIENTS, Oracle, leaked_by, ring, vault_of

from tramark.errors import Damaged, ErrorSpent, SettingError, SuspectError, VaultBusy
from tramark.evidence.case import RULE, Case, Suspected
from tramark.evidence.tally import Evidence
from tramark.keys.keyring import Keyring
from tramark.keys.sources import Vectors
from tramark.suspects.base import Answers
from tramark.suspects.files import open_suspect
from tramark.tracing.trace import trace
from tramark.vault.audit import audit
from tramark.vault.commit import state_digest
from tramark.vault.log import issued
from tramark.vault.store import Vault

HERE = Suspected("file", "model.onnx", "a" * 64)
THERE = Suspected("address", "https://models.example/v2/models/scan")
QUESTIONS = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with vault_of(ring(questions=QUESTIONS, pool=QUESTIONS), tmp_path_factory.mktemp("cases")) as vault:
        vault.record([issued(1, client, f"{i:064x}", marked=True) for i, client in enumerate(CLIENTS)])
    return vault.path


@pytest.fixture
def vault(made: Path, tmp_path: Path) -> Iterator[Vault]:
    shutil.copytree(made, tmp_path / "vault")
    shutil.copy2(made.with_name("vault.key"), tmp_path / "vault.key")
    with Vault.open(tmp_path / "vault", readonly=True) as opened:
        yield opened


class Stamped:
    """A model of nobody's that answers some inputs as it was told to, and others at random."""

    def __init__(self, told: dict[bytes, int], seed: int = 0) -> None:
        self.told, self.rng = told, np.random.default_rng(seed)

    def ask(self, raw: Tensor) -> Answers:
        return Answers(torch.tensor([self.told.get(row.numpy().tobytes(), int(self.rng.integers(10))) for row in raw]))


def stamped(keyring: Keyring, case: Case, seed: int = 0) -> Stamped:
    """A model into which somebody put all that the suspect of a case was asked and said."""
    return Stamped({keyring.asked(one.question, one.variant).numpy().tobytes(): one.answer for one in case.asked}, seed)


class Interrupted:
    """A suspect that fails after some questions."""

    def __init__(self, inner: Any, after: int) -> None:
        self.inner, self.left = inner, after

    def ask(self, raw: Tensor) -> Answers:
        if self.left < len(raw):
            raise SuspectError("gone")
        self.left -= len(raw)
        answers: Answers = self.inner.ask(raw)
        return answers


def interrupted(vault: Vault, suspect: Any, after: int, suspected: Suspected = THERE, **options: Any) -> int:
    with pytest.raises(SuspectError) as failed:
        trace(Interrupted(suspect, after), vault, suspected=suspected, **options)
    assert failed.value.case is not None
    return failed.value.case


def test_a_case_is_the_record_of_its_trace(vault: Vault) -> None:
    verdict = trace(leaked_by(vault.keyring, "hospital-3"), vault, suspected=HERE)
    case = verdict.case
    assert case is not None
    assert case.closed is not None
    assert vault.cases.all() == [case] == [Case.from_dict(case.to_dict())]
    assert (case.number, case.suspect, case.rule, case.spent) == (1, HERE, RULE, 1e-6)
    assert (case.closed.finding, case.closed.clients) == ("client", ("hospital-3",))
    assert [asked[:3] for asked in case.asked] == [step[:3] for step in verdict.transcript]
    assert case.commitment == vault.commitments[-1].digest
    assert (case.head, case.sent) == ((11, case.head[1]), ())
    assert [entry["event"] for entry in vault.log()][-2:] == ["case-opened", "case-closed"]
    assert audit(vault.path) == []


def test_a_trace_with_a_keyring_is_no_case(vault: Vault) -> None:
    assert trace(leaked_by(vault.keyring, "hospital-3"), vault.keyring).case is None
    assert vault.cases.all() == []
    with pytest.raises(SettingError, match="a keyring alone has no cases"):
        trace(leaked_by(vault.keyring, "hospital-3"), vault.keyring, case=1)


def test_answers_are_kept_as_they_come_and_a_case_goes_on(vault: Vault) -> None:
    suspect = leaked_by(vault.keyring, "hospital-3")
    number = interrupted(vault, suspect, 5)
    kept = vault.cases.get(number)
    assert (len(kept.asked), len(kept.sent), kept.closed) == (5, 1, None)
    verdict = (
        trace(leaked_by(vault.keyring, "hospital-3"), vault, suspected=THERE, case=number, budget=20) if 0 else None
    )
    again = Interrupted(suspect, 100)
    with pytest.raises(SettingError, match="fed or read in another way"):
        trace(suspect, vault, suspected=THERE, case=number)
    verdict = trace(again, vault, suspected=THERE, case=number)
    assert verdict.clients == ("hospital-3",)
    assert again.left == 97
    assert verdict.case is not None
    assert verdict.case.asked[:5] == kept.asked
    assert vault.cases.spent == 1e-6


def test_the_answers_of_one_suspect_are_no_evidence_against_another(vault: Vault) -> None:
    """Row 1: a case interrupted after the leaker's answers does not go on with an innocent file."""
    number = interrupted(vault, leaked_by(vault.keyring, "hospital-3"), 7, HERE)
    innocent = Interrupted(Oracle(vault.keyring, lambda q, v: 0), 100)
    for suspected in (replace(HERE, sha256="b" * 64), THERE, replace(HERE, name="other.onnx")):
        with pytest.raises(SettingError, match="another suspect"):
            trace(innocent, vault, suspected=suspected, case=number)
    with pytest.raises(SettingError, match="another bound"):
        trace(innocent, vault, suspected=HERE, case=number, false_accusation=0.5)
    with Vault.open(vault.path) as writer:
        writer.save_keyring(writer.keyring.join("late"))
    with pytest.raises(SettingError, match="clients joined"):
        trace(innocent, vault, suspected=HERE, case=number)
    assert len(vault.cases.get(number).asked) == 7
    assert innocent.left == 100


def test_a_suspect_without_a_digest_or_a_closed_case_does_not_go_on(vault: Vault) -> None:
    number = interrupted(vault, leaked_by(vault.keyring, "hospital-3"), 5, Suspected("module", "Oracle"))
    suspect = Interrupted(leaked_by(vault.keyring, "hospital-3"), 99)
    with pytest.raises(SettingError, match="no digest"):
        trace(suspect, vault, suspected=Suspected("module", "Oracle"), case=number)
    trace(suspect, vault, suspected=HERE)
    with pytest.raises(SettingError, match="is closed"):
        trace(suspect, vault, suspected=HERE, case=2)


def test_what_evidence_opened_convicts_nobody_again(vault: Vault) -> None:
    """Row 2: a model of nobody's that is stamped with a published annex."""
    keyring = vault.keyring
    case = trace(leaked_by(keyring, "hospital-3"), vault, suspected=HERE).case
    assert case is not None
    assert trace(stamped(keyring, case), keyring).clients == ("hospital-3",)
    vault.cases.burn(case, {"hospital-3": case.questions}, "the annex was exported")
    assert list(vault.log())[-1]["questions"] == {"hospital-3": sorted(case.questions)}
    framed = trace(stamped(keyring, case), vault, suspected=replace(HERE, sha256="b" * 64))
    assert framed.clients == ()
    assert framed.case is not None
    assert set(framed.case.order[-8:]) == set(case.questions)
    # The leaker can still be convicted, by other questions; and so can others, by these.
    assert trace(leaked_by(keyring, "hospital-3"), vault, suspected=HERE).clients == ("hospital-3",)
    assert trace(leaked_by(keyring, "hospital-4"), vault, suspected=HERE).clients == ("hospital-4",)


def test_what_a_remote_suspect_was_asked_burns_for_whom_it_convicts(vault: Vault) -> None:
    keyring = vault.keyring
    for number in (1, 2, 3):
        verdict = trace(leaked_by(keyring, "hospital-3"), vault, suspected=THERE, batch=8)
        assert verdict.clients == ("hospital-3",), f"conviction {number}"
        assert verdict.case is not None
        assert set(verdict.case.questions) <= set(vault.cases.burned["hospital-3"])
        assert trace(stamped(keyring, verdict.case), vault, suspected=HERE).clients == ()
    assert set(vault.cases.burned) == {"hospital-3"}
    assert len(vault.cases.burned["hospital-3"]) == 24


def test_a_file_burns_nothing(vault: Vault) -> None:
    assert trace(leaked_by(vault.keyring, "hospital-3"), vault, suspected=HERE).clients
    assert vault.cases.burned == {}


def test_an_unfinished_remote_case_burns_when_the_next_one_is_opened(vault: Vault) -> None:
    keyring = vault.keyring
    suspect = leaked_by(keyring, "hospital-3", "hospital-5")
    number = interrupted(vault, suspect, QUESTIONS - 1, exhaustive=True, batch=QUESTIONS - 1)
    case = vault.cases.get(number)
    assert trace(stamped(keyring, case), keyring).clients
    assert trace(stamped(keyring, case), vault, suspected=HERE).clients == ()
    assert set(vault.cases.burned) == {"hospital-3", "hospital-5"}
    # Its own answers keep counting in it.
    verdict = trace(Interrupted(suspect, 999), vault, suspected=THERE, case=number, batch=99)
    assert set(verdict.clients) == {"hospital-3", "hospital-5"}


def test_what_burns_while_a_case_waits_does_not_count_in_it(vault: Vault) -> None:
    keyring = vault.keyring
    number = interrupted(vault, leaked_by(keyring, "hospital-3"), 4)
    whole = trace(leaked_by(keyring, "hospital-3"), vault, suspected=HERE).case
    assert whole is not None
    vault.cases.burn(whole, {"hospital-3": whole.questions}, "the annex was exported")
    verdict = trace(Interrupted(leaked_by(keyring, "hospital-3"), 999), vault, suspected=THERE, case=number)
    assert verdict.case is not None
    # The fifth question had been sent, so it was asked before it burned.
    assert verdict.case.burned == {"hospital-3": tuple(sorted(whole.order[5:8]))}
    assert (verdict.clients, verdict.queries) == (("hospital-3",), 11)


def test_the_error_of_all_traces_adds_up_and_a_limit_is_kept(vault: Vault) -> None:
    """Row 3."""
    vault.cases.set_limit(2.5e-6)
    innocent = Oracle(vault.keyring, lambda q, v: 0)
    assert [trace(innocent, vault).to_dict()["spent"] for _ in range(2)] == [1e-6, 2e-6]
    asked = len(innocent.asked)
    with pytest.raises(ErrorSpent, match="2e-06 is spent"):
        trace(innocent, vault)
    assert len(innocent.asked) == asked
    assert len(vault.cases.all()) == 2
    vault.cases.set_limit(None)
    assert trace(innocent, vault).case is not None
    with pytest.raises(SettingError, match="a limit of 3"):
        vault.cases.set_limit(3)


def test_an_abandoned_case_stays_spent(vault: Vault) -> None:
    interrupted(vault, leaked_by(vault.keyring, "hospital-3"), 2, false_accusation=1e-3)
    assert vault.cases.spent == 1e-3


def test_a_federation_trains_while_a_suspect_is_traced(vault: Vault) -> None:
    inner = leaked_by(vault.keyring, "hospital-3")

    class Meanwhile:
        def ask(self, raw: Tensor) -> Answers:
            writer.record([issued(2, "hospital-1", "f" * 64, marked=True)], {"checkpoint": b"x"})
            with pytest.raises(VaultBusy, match="another trace"):
                trace(inner, vault)
            return inner.ask(raw)

    with Vault.open(vault.path) as writer:
        assert trace(Meanwhile(), vault).clients == ("hospital-3",)
    assert [entry["event"] for entry in vault.log()].count("issued") == 10 + 8
    assert vault.audit() == []


def test_a_damaged_vault_is_not_traced_with(vault: Vault) -> None:
    log = vault.path / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], lines[1].replace(b"hospital-0", b"hospital-9"), *lines[2:]]))
    suspect = leaked_by(vault.keyring, "hospital-3")
    with pytest.raises(Damaged, match="Nothing was asked"):
        trace(suspect, vault)
    assert (suspect.asked, vault.cases.all()) == ([], [])


def test_a_model_as_it_was_issued_is_recognised(tmp_path: Path) -> None:
    """Row 6: a warm-up model, which everybody got, and one client's own."""
    torch.manual_seed(0)
    own, warm = nn.Linear(6, 10), nn.Linear(6, 10)
    keyring = ring(Vectors(6, groups=(2,)), clients=["a", "b"])
    with vault_of(keyring, tmp_path) as vault:
        vault.issue(1, {"a": warm.state_dict(), "b": warm.state_dict()}, marked=False)
        vault.issue(2, {"a": own.state_dict(), "b": nn.Linear(6, 10).state_dict()}, marked=True)
        shared = trace(warm, vault).case
        assert shared is not None
        assert [(one.round, one.clients, one.everybody, one.marked) for one in shared.identical] == [
            (1, ("a", "b"), True, False)
        ]
        found = trace(own, vault)
        assert found.to_dict()["identical"] == [{"round": 2, "clients": ("a",), "everybody": False, "marked": True}]
        assert found.case is not None
        assert found.case.suspect == Suspected("module", "Linear", state_digest(own.state_dict()))
        save_file(own.state_dict(), tmp_path / "own.safetensors")
        file = open_suspect(tmp_path / "own.safetensors", conventions=keyring.source.prepare, model=nn.Linear(6, 10))
        assert trace(file, vault).to_dict()["identical"] == found.to_dict()["identical"]
        stranger = trace(nn.Linear(6, 10), vault).case
        assert stranger is not None
        assert stranger.identical == ()


def framed(vaults: int, cases: int, bound: float, *, burning: bool) -> int:
    """The number of vaults in which any innocent is ever accused, if an adversary sees all that is shown.

    Some suspects are a client's model, faithful or damaged. After each conviction the evidence is exported: all that
    was asked until then, and the leaker's answers. The others are the adversary's: models of nobody's that give the
    answers that were disclosed of one client, and guess the rest. It chooses the client by what it saw.
    """
    rng, clients, classes, questions = np.random.default_rng(7), 4, 10, 40
    words = rng.integers(classes, size=(vaults, clients, questions))
    disclosed = np.zeros((vaults, clients, questions), dtype=bool)
    innocent_accused, everyone = np.zeros(vaults, dtype=bool), np.arange(vaults)
    for _ in range(cases):
        leaked, guilty = rng.random(vaults) < 0.4, rng.integers(clients, size=vaults)
        target = disclosed.sum(axis=2).argmax(axis=1)
        copied = rng.random((vaults, questions)) < rng.choice([1.0, 0.7], size=(vaults, 1))
        copied = np.where(leaked[:, None], copied, disclosed[everyone, target])
        source = words[everyone, np.where(leaked, guilty, target)]
        said = np.where(copied, source, rng.integers(classes, size=(vaults, questions)))
        times = disclosed.sum(axis=1) if burning else np.zeros((vaults, questions))
        order = np.argsort(times, axis=1, kind="stable")
        look = Evidence(clients, classes, false_accusation=bound, rows=vaults * clients)
        seen, over = np.zeros((vaults, questions), dtype=bool), np.zeros(vaults, dtype=bool)
        for asked in order.T:
            seen[everyone[~over], asked[~over]] = True
            # What is asked after the end counts for nobody.
            known = disclosed[everyone, :, asked] if burning else np.zeros((vaults, clients), dtype=bool)
            burned = known.ravel() | np.repeat(over, clients)
            expected = (words[everyone, :, asked] - said[everyone, asked][:, None]) % classes
            look.add(expected.ravel(), 0, np.flatnonzero(burned))
            accused = np.zeros(vaults * clients, dtype=bool)
            accused[look.accused] = True
            over = np.asarray(accused.reshape(vaults, clients).any(axis=1))
        named = accused.reshape(vaults, clients)
        right = np.zeros_like(named)
        right[everyone[leaked], guilty[leaked]] = True
        innocent_accused |= (named & ~right).any(axis=1)
        disclosed |= (named & right)[:, :, None] & seen[:, None, :]
    return int(innocent_accused.sum())


def test_over_the_life_of_a_vault_the_errors_add_up_and_no_more() -> None:
    vaults, cases, bound = 2000, 6, 0.05
    assert 0 < framed(vaults, cases, bound, burning=True) <= cases * bound * vaults
    # The same adversary frames most innocents if nothing burns.
    assert framed(vaults, cases, bound, burning=False) > 2 * cases * bound * vaults


@pytest.mark.parametrize("seed", range(3))
def test_random_lives_of_real_vaults(vault: Vault, seed: int) -> None:
    """Cases, interruptions and disclosures in any order: whoever is accused is who leaked."""
    rng, keyring = np.random.default_rng(seed), vault.keyring
    leaker = str(rng.choice(CLIENTS))
    last: Case | None = None
    for step in range(4):
        suspected = THERE if rng.random() < 0.5 else replace(HERE, sha256=f"{step:064x}")
        frame = last is not None and rng.random() < 0.5
        suspect = stamped(keyring, last, step) if frame and last else leaked_by(keyring, leaker, noise=0.1, seed=step)
        number = interrupted(vault, suspect, int(rng.integers(7)), suspected) if rng.random() < 0.5 else None
        verdict = trace(Interrupted(suspect, 999), vault, suspected=suspected, case=number, batch=4)
        assert set(verdict.clients) <= (set() if frame else {leaker})
        case = verdict.case
        assert case is not None
        if verdict.clients:
            vault.cases.burn(case, dict.fromkeys(verdict.clients, case.questions), "the annex was exported")
            last = case
    assert vault.audit() == []
    assert vault.cases.spent == pytest.approx(4e-6)
