"""Time stamps come from a real authority on this machine, and other tools accept what we keep of them."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from authority import authority_in, certified, openssl
from statements import closed, handed_over, traced
from traces import leaked_by, ring, vault_of

from tramark.errors import BadProof, SettingError, Unreadable, VaultError
from tramark.evidence.beacon import Beacon
from tramark.evidence.reader import Known
from tramark.evidence.verify import verify_statement
from tramark.tracing.trace import trace

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)
if shutil.which("openssl") is None:
    pytest.skip("the authority is openssl's", allow_module_level=True)

from tramark.vault.timestamps import stamp, tokens


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a time-stamping authority, and its folder."""
    with authority_in(tmp_path_factory.mktemp("authority") / "tsa") as there:
        yield there


def test_a_commitment_is_stamped_and_everybody_can_check_it(authority: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = authority
    root = (folder / "ca.pem").read_bytes()
    with vault_of(ring(), tmp_path) as vault:
        time, [link] = stamp(vault, address), vault.commitments
        token = tokens(vault)[link.digest]
        (folder / "kept.tsr").write_bytes(token)
        assert "OK" in openssl(folder, "ts", "-verify", "-digest", link.digest, "-in", "kept.tsr", "-CAfile", "ca.pem")
        assert [entry["event"] for entry in vault.log()] == ["created", "timestamped"]
        assert vault.audit() == []
        case = traced(vault, "hospital-3")
        statement, annex = handed_over(vault, case)
        known = Known(published=vault.commitments, tokens=(token,), authority=root)
        found = verify_statement(statement, annex, known)
        assert any(f"existed on {time:%Y-%m-%d %H:%M:%S} UTC" in sentence for sentence in found.proven)
        assert not any("operator's word" in sentence for sentence in found.unproven)
        # By the stamp, the commitment is younger than a case that claims an earlier date.
        early = "2001-01-01T00:00:00+00:00"
        with pytest.raises(SettingError, match="out of order"):
            handed_over(vault, replace(case, opened=early))
        other = certified(tmp_path / "other")
        for tampered in (replace(known, authority=(other / "ca.pem").read_bytes()), replace(known, tokens=(b"x",))):
            with pytest.raises(BadProof):
                verify_statement(statement, annex, tampered)
        with vault_of(ring(secret=b"another" * 5), tmp_path / "second") as second:
            stamp(second, address)
            [foreign] = tokens(second).values()
        with pytest.raises(BadProof, match="none of these"):
            verify_statement(statement, annex, replace(known, tokens=(foreign,)))


def test_an_authority_that_does_not_answer_leaves_no_trace(authority: tuple[str, Path], tmp_path: Path) -> None:
    address, _ = authority
    with vault_of(ring(), tmp_path) as vault:
        for strange, error in (
            (f"{address}/busy", VaultError),
            (f"{address}/nonsense", Unreadable),
            ("http://127.0.0.1:9", VaultError),
            ("ftp://example.org", SettingError),
        ):
            with pytest.raises(error):
                stamp(vault, strange)
        assert tokens(vault) == {}


def test_a_stamped_commitment_and_a_beacon_exclude_framing(authority: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = authority
    late, value = "2099-01-01T00:00:00+00:00", b"v" * 32
    beacon = Beacon("drand quicknet", "12345678", "2090-01-01T00:00:00+00:00")
    with vault_of(ring(), tmp_path) as vault:
        vault.save_keyring(vault.keyring.choose(range(23, -1, -1)), beacon=beacon)
        stamp(vault, address)
        vault.reveal(value)
        keyring = vault.keyring
        case = closed(vault, trace(leaked_by(keyring, "hospital-7"), keyring), opened=late)
        assert case.closed is not None
        case = replace(
            case,
            asked=tuple(one._replace(time=late) for one in case.asked),
            closed=replace(case.closed, time=late),
        )
        statement, annex = handed_over(vault, case, time=late)
        known = Known(
            published=vault.commitments,
            tokens=tuple(tokens(vault).values()),
            authority=(folder / "ca.pem").read_bytes(),
            beacons=(value,),
        )
        drawn = "drawn by the public beacon"
        assert any(drawn in sentence for sentence in verify_statement(statement, annex, known).proven)
        for less in (replace(known, beacons=(b"w" * 32,)), replace(known, tokens=())):
            found = verify_statement(statement, annex, less)
            assert not any(drawn in sentence for sentence in found.proven)
            assert any("is not excluded" in sentence for sentence in found.unproven)
