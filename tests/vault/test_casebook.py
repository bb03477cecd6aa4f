"""Cases are kept as safely as everything else in a vault, also while a server writes to it."""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from traces import ring, vault_of

from tramark.errors import VaultBusy, VaultError
from tramark.evidence.case import RULE, Case, Suspected
from tramark.vault.audit import audit
from tramark.vault.cases import Casework
from tramark.vault.log import issued
from tramark.vault.store import Vault

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with vault_of(ring(clients=["alice", "bob"], questions=2, pool=4), tmp_path) as vault:
        return vault.path


def opened(work: Casework) -> Case:
    return work.open(
        suspect=Suspected("address", "https://models.example/scan"),
        conventions={},
        rule=RULE,
        false_accusation=1e-6,
        commitment="c" * 64,
        clients=2,
        classes=10,
        variants=4,
        order=(1, 0),
        burned=work.burned,
    )


def test_one_trace_at_a_time_beside_the_writer_and_readers(path: Path) -> None:
    with Vault.open(path) as writer, Vault.open(path, readonly=True) as reader, reader.cases.casework() as work:
        case = opened(work)
        writer.record([issued(1, "alice", "a" * 64)], {"checkpoint": b"one"})
        case = work.keep(case, [(1, 0, 3, None)])
        with pytest.raises(VaultBusy, match="another trace"), writer.cases.casework():
            pass
        with pytest.raises(VaultBusy, match="another trace"):
            reader.cases.burn(case, {"alice": [1]}, "the annex was exported")
        assert writer.cases.all() == [case]
        assert (reader.get("checkpoint"), reader.names) == (b"one", ("checkpoint",))
        with pytest.raises(VaultError, match="no name of the vault's own"):
            writer.put("case-1", b"forged")
    assert audit(path) == []


def test_what_is_burned_is_logged_once_and_stays(path: Path) -> None:
    with Vault.open(path, readonly=True) as vault:
        with vault.cases.casework() as work:
            case = opened(work)
        vault.cases.burn(case, {"alice": [1]}, "the annex was exported")
        vault.cases.burn(case, {"alice": [0, 1], "bob": [1]}, "the annex was exported")
        vault.cases.burn(case, {"alice": [0]}, "the annex was exported")
        assert vault.cases.burned == {"alice": (0, 1), "bob": (1,)}
        logged = [entry["questions"] for entry in vault.log() if entry["event"] == "burned"]
        assert logged == [{"alice": [1]}, {"alice": [0], "bob": [1]}]
        with pytest.raises(VaultError, match="no case 2"):
            vault.cases.get(2)


def test_a_deleted_case_is_noticed(path: Path) -> None:
    with Vault.open(path, readonly=True) as vault, vault.cases.casework() as work:
        opened(work)
    [file] = (path / "sealed").glob("case-1.*")
    file.unlink()
    assert audit(path) == [f"sealed/{file.name} is missing"]


@contextmanager
def tracer(path: Path, acknowledged: Path) -> Iterator[int]:
    """A process that opens, keeps, burns and closes case after case, says so, and is killed in the end."""
    process = os.fork()
    if process == 0:
        try:
            with (
                Vault.open(path, readonly=True) as vault,
                acknowledged.open("ab", buffering=0) as tell,
                vault.cases.casework() as work,
            ):
                while True:
                    case = opened(work)
                    for answer in range(3):
                        case = work.keep(work.sending(case, [(1, answer)]), [(1, answer, answer, None)])
                        tell.write(f"{case.number} {answer + 1}\n".encode())
                    work.mark_burned(case.number, {f"client {case.number}": [1]}, "the annex was exported")
                    tell.write(f"{case.number} 4\n".encode())
        finally:
            os._exit(1)
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), "the writer ended by itself"


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_loses_no_answer_that_was_acknowledged(path: Path, tmp_path: Path, kills: int) -> None:
    chance, acknowledged = random.Random(kills), tmp_path / "acknowledged"
    acknowledged.touch()
    for kill in range(kills):
        told = acknowledged.stat().st_size
        with tracer(path, acknowledged):
            deadline = time.monotonic() + 60
            while kill % 2 and acknowledged.stat().st_size == told and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(chance.random() * 0.05)
        with Vault.open(path, readonly=True) as vault:
            assert vault.audit() == [], f"after kill {kill}"
            cases = {case.number: case for case in vault.cases.all()}
            assert list(cases) == list(range(1, len(cases) + 1))
            for number, step in (map(int, line.split()) for line in acknowledged.read_text().splitlines()):
                assert len(cases[number].asked) >= min(3, step)
                assert step < 4 or f"client {number}" in vault.cases.burned
            assert vault.cases.spent == pytest.approx(len(cases) * 1e-6)
    assert acknowledged.stat().st_size
