"""A vault keeps its secrets, loses nothing it acknowledged, and tells when it was touched."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from traces import ring, vault_of

from tramark.errors import Damaged, NoKey, VaultBusy, VaultError, WrongKey
from tramark.evidence.commitment import (
    Commitment,
    canonical,
    verify_answers,
    verify_chain,
    verify_questions,
    verify_signature,
)
from tramark.keys.pictures import LabelledImages, Patterns
from tramark.vault.audit import audit
from tramark.vault.branches import tensor_digest
from tramark.vault.head import COMMIT_LOCK, GENESIS, HEAD, LOCK, LOG, PUBLIC, SEALED, Head
from tramark.vault.lock import KeySource, default_key_file, find_key, make_key_file
from tramark.vault.log import issued, line_hash
from tramark.vault.seal import CHUNK
from tramark.vault.storage import SIGNING
from tramark.vault.store import Vault

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)

from vaults import writer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small vault with a bit of everything, and its key file beside it."""
    keyring = ring(Patterns((1, 4, 4)), clients=["alice", "bob"], classes=2, questions=2, pool=4)
    with vault_of(keyring, tmp_path_factory.mktemp("model")) as vault:
        vault.put("marks", b"the marks")
        vault.record([issued(1, "alice", "a" * 64), issued(1, "bob", "b" * 64)], {"checkpoint": b"round one"})
        vault.record([issued(2, "alice", "c" * 64)])
    return vault.path


@pytest.fixture
def path(model: Path, tmp_path: Path) -> Path:
    """A copy of the small vault to do anything with."""
    shutil.copytree(model, tmp_path / "vault")
    shutil.copy2(default_key_file(model), default_key_file(tmp_path / "vault"))
    return tmp_path / "vault"


def files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def events(path: Path) -> list[str]:
    with Vault.open(path, readonly=True) as vault:
        return [entry["event"] for entry in vault.log()]


def test_everything_put_in_comes_out_again(path: Path) -> None:
    with Vault.open(path) as vault:
        assert vault.get("marks") == b"the marks"
        assert vault.get("checkpoint") == b"round one"
        assert vault.names == ("checkpoint", "marks")
        entries = list(vault.log())
        assert [(e["event"], e.get("round"), e.get("client")) for e in entries] == [
            ("created", None, None),
            ("issued", 1, "alice"),
            ("issued", 1, "bob"),
            ("issued", 2, "alice"),
        ]
        assert [e["n"] for e in entries] == [0, 1, 2, 3]
        assert vault.keyring.key("alice").client == "alice"
        assert vault.audit() == []
        with pytest.raises(VaultError, match="nothing was put under 'nothing'"):
            vault.get("nothing")


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_blobs_of_any_size(path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    with Vault.open(path) as vault:
        vault.put("blob", data)
        assert vault.get("blob") == data


def test_secrets_are_nowhere_in_clear(path: Path) -> None:
    with Vault.open(path) as vault:
        secret, signing = vault.keyring.secret, vault.storage.get(SIGNING)
        shown = repr(vault) + repr(KeySource(passphrase="hush"))
    everything = b"".join(file.read_bytes() for file in files(path))
    key = default_key_file(path).read_bytes()
    for hidden in (
        secret,
        secret.hex().encode(),
        signing,
        signing.hex().encode(),
        key,
        b"the marks",
        b"round one",
    ):
        assert hidden not in everything
    assert "hush" not in shown


def test_only_the_owner_can_look(path: Path) -> None:
    assert default_key_file(path).stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o700
    assert all(f.stat().st_mode & 0o077 == 0 for f in files(path) if f.name != PUBLIC)


def test_a_replaced_blob_leaves_nothing_behind(path: Path) -> None:
    with Vault.open(path) as vault:
        before = len(files(path))
        vault.put("marks", b"other marks")
        assert len(files(path)) == before
        assert vault.get("marks") == b"other marks"


def test_names_that_are_not_the_users(path: Path) -> None:
    with Vault.open(path) as vault:
        for name in ("keyring", "signing-key", "commitments", "../x", "", "Ä", "a/b", "x" * 65):
            with pytest.raises(VaultError, match="nothing can be put"):
                vault.put(name, b"")
            with pytest.raises(VaultError):
                vault.get(name)


# Keys


def test_a_passphrase_opens_and_a_wrong_one_says_so_in_one_line(model: Path, tmp_path: Path) -> None:
    with Vault.open(model, readonly=True) as old:
        keyring = old.keyring
    made = tmp_path / "vault"
    Vault.create(made, keyring, passphrase="caf\u00e9 au lait").close()
    with Vault.open(made, passphrase="cafe\u0301 au lait") as vault:
        assert vault.keyring == keyring
    with pytest.raises(WrongKey) as error:
        Vault.open(made, passphrase="tea")
    assert str(error.value) == "wrong passphrase"


def test_rotation_changes_the_lock_and_nothing_sealed(path: Path, tmp_path: Path) -> None:
    old, new = default_key_file(path), make_key_file(tmp_path / "new.key")
    before = {file: file.read_bytes() for file in (path / SEALED).iterdir()}
    with Vault.open(path) as vault:
        vault.rotate(key_file=new)
        assert vault.audit() == []
    assert {file: file.read_bytes() for file in (path / SEALED).iterdir()} == before
    with pytest.raises(WrongKey, match="is not this vault's key"):
        Vault.open(path, key_file=old)
    with Vault.open(path, key_file=new) as vault:
        assert vault.get("marks") == b"the marks"
        assert [e["event"] for e in vault.log()][-1] == "rotated"
        vault.rotate(passphrase="tea")
    with Vault.open(path, passphrase="tea") as vault:
        assert vault.audit() == []
    with pytest.raises(WrongKey, match="locked with a passphrase"):
        Vault.open(path, key_file=new)


def test_a_key_file_that_others_can_read_is_refused(path: Path) -> None:
    default_key_file(path).chmod(0o640)
    with pytest.raises(VaultError, match="can be read by others: chmod 600"):
        Vault.open(path)


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    key = make_key_file(tmp_path / "k").read_bytes()
    with pytest.raises(VaultError, match="never overwritten"):
        make_key_file(tmp_path / "k")
    assert (tmp_path / "k").read_bytes() == key


def test_where_a_key_is_looked_for(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = default_key_file(path)
    monkeypatch.setenv("TRAMARK_PASSPHRASE", "from the environment")
    assert find_key(path).key_file == beside, "only the kind of key that the vault has"
    new = tmp_path / "other"
    assert find_key(new).passphrase == "from the environment"
    assert find_key(new, passphrase="given").passphrase == "given"
    monkeypatch.delenv("TRAMARK_PASSPHRASE")
    assert find_key(new, prompt=lambda: "typed").passphrase == "typed"
    with pytest.raises(NoKey):
        find_key(new)
    beside.unlink()
    with pytest.raises(NoKey, match="needs its key file"):
        Vault.open(path, prompt=lambda: "typed")
    with pytest.raises(VaultError, match="not both"):
        find_key(new, passphrase="a", key_file="b")


def test_what_is_no_vault(tmp_path: Path, path: Path) -> None:
    with pytest.raises(VaultError, match="there is no vault at"):
        Vault.open(tmp_path / "nowhere", passphrase="x")
    with Vault.open(path, readonly=True) as vault, pytest.raises(VaultError, match="exists already"):
        Vault.create(path, vault.keyring)


def test_a_failed_creation_leaves_nothing(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Vault.open(model, readonly=True) as vault:
        keyring = vault.keyring
    key = make_key_file(tmp_path / "key")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("tramark.vault.commit.commit", fail)
    with pytest.raises(OSError, match="disk full"):
        Vault.create(tmp_path / "vault", keyring, key_file=key)
    assert os.listdir(tmp_path) == ["key"]


# Writers and readers


def test_the_second_writer_is_told_and_readers_are_not_kept_out(path: Path) -> None:
    with Vault.open(path) as writer:
        with pytest.raises(VaultBusy, match="another process is writing"):
            Vault.open(path)
        with Vault.open(path, readonly=True) as reader:
            writer.put("marks", b"newer")
            assert reader.get("marks") == b"newer"
            assert reader.audit() == []
            with pytest.raises(VaultError, match="reading only"):
                reader.put("marks", b"x")
    Vault.open(path).close()
    with pytest.raises(VaultError, match="is closed"):
        writer.get("marks")


def test_a_forked_child_neither_writes_nor_holds_the_lock(path: Path) -> None:
    vault = Vault.open(path)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            vault.put("marks", b"by the child")
        except VaultError:
            os.write(ready[1], b"refused")
        else:
            os.write(ready[1], b"written")
        os.read(go[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 7) == b"refused"
        with pytest.raises(VaultBusy):
            Vault.open(path)
        vault.close()
        Vault.open(path).close()
    finally:
        os.write(go[1], b"x")
        os.waitpid(child, 0)


def test_a_vault_is_opened_and_audited_without_torch(path: Path) -> None:
    script = """
import sys
sys.modules["torch"] = None
from tramark.vault.audit import audit
assert audit(sys.argv[1]) == [], audit(sys.argv[1])
"""
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)


# The keyring and its commitments


def test_changes_of_the_keyring_are_logged_and_new_clients_committed(path: Path) -> None:
    with Vault.open(path) as vault:
        keyring = vault.keyring.join("carol").leave("bob").choose([3, 1])
        vault.save_keyring(keyring)
        vault.save_keyring(keyring)
        assert vault.keyring == keyring
        assert [(e["event"], e.get("client")) for e in vault.log()][4:] == [
            ("client-joined", "carol"),
            ("questions-chosen", None),
            ("client-left", "bob"),
        ]
        vault.save_keyring(keyring.join("bob"))
        assert [(e["event"], e.get("client")) for e in vault.log()][7:] == [("client-joined", "bob")]
        assert vault.audit() == []
        public = json.loads((path / PUBLIC).read_bytes())["commitments"]
        chain = [Commitment.from_dict(item) for item in public]
        assert tuple(chain) == vault.commitments
        assert [item.clients for item in chain] == [(0, 2), (0, 3)]
        verify_chain(chain)
        for client in ("alice", "carol"):
            key = keyring.key(client)
            shown = verify_answers(vault.prove_answers(client, key.questions), chain)
            assert shown == dict(zip(key.questions, key.answers, strict=True))
        second = keyring.train_variants + 1
        (proof,) = vault.prove_questions({3: [second - 1, second]})
        assert verify_questions(proof, chain)[3, second] == tensor_digest(keyring.raw([3], "held-out")[0, 1])
        with pytest.raises(ValueError, match="not all of these questions"):
            vault.prove_questions({99: [4]})
        signature = vault.sign("evidence", b"bundle")
        verify_signature(chain[0].public_key, "evidence", b"bundle", signature)


def test_another_keyring_is_refused(path: Path) -> None:
    with Vault.open(path) as vault:
        keyring = vault.keyring
        for other in (
            replace(keyring, secret=b"x" * 32),
            replace(keyring, clients=("bob", "alice")),
            replace(keyring, clients=("alice",)),
            replace(keyring, train_variants=5),
            replace(keyring, pool=9),
        ):
            with pytest.raises(VaultError, match="another keyring"):
                vault.save_keyring(other)


def test_questions_from_images_need_the_images_for_the_keyring_alone(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (40, 1, 4, 4), dtype=torch.uint8), torch.arange(40) % 2
    source = LabelledImages(*images, shape=(1, 4, 4), per_question=20)
    keyring = ring(
        source, clients=["a", "b"], classes=2, pool=None, assignment="label", train_variants=3, held_out_variants=4
    )
    vault_of(keyring, tmp_path).close()
    with Vault.open(tmp_path / "vault") as vault:
        assert vault.audit() == []
        with pytest.raises(ValueError, match="pass them as images"):
            _ = vault.keyring
    with Vault.open(tmp_path / "vault", images=images) as vault:
        assert vault.keyring.key("b") == keyring.key("b")
        assert verify_answers(vault.prove_answers("b", [1]), vault.commitments) == {1: 1}


# Tampering


def noticed(path: Path) -> list[str]:
    try:
        return audit(path)
    except VaultError as error:
        return [str(error)]


def test_every_flipped_byte_is_noticed_and_its_file_named(path: Path) -> None:
    assert noticed(path) == []
    for file in files(path):
        good = file.read_bytes()
        name = file.relative_to(path).as_posix()
        for place in range(len(good)):
            bad = bytearray(good)
            bad[place] ^= 1 << place % 8
            file.write_bytes(bad)
            problems = noticed(path)
            assert problems, f"byte {place} of {name}"
            assert any(name in problem for problem in problems), (place, problems)
        for bad in (bytearray(good[:-1]), bytearray(good + b"\0")):
            file.write_bytes(bad)
            assert file.name in (LOCK, COMMIT_LOCK) or noticed(path), name
        file.write_bytes(good)
    assert noticed(path) == []


def test_every_missing_file_is_named(path: Path) -> None:
    # This lock is made when it is needed.
    for file in set(files(path)) - {path / COMMIT_LOCK}:
        good = file.read_bytes()
        file.unlink()
        assert any(file.name in problem for problem in noticed(path)), file
        file.write_bytes(good)
    (path / "extra").touch()
    assert noticed(path) == ["extra does not belong to the vault"]


def test_swapped_blobs_are_noticed(path: Path) -> None:
    marks, checkpoint = (next((path / SEALED).glob(f"{name}.*")) for name in ("marks", "checkpoint"))
    content = marks.read_bytes()
    marks.write_bytes(checkpoint.read_bytes())
    checkpoint.write_bytes(content)
    assert len(noticed(path)) == 2


def test_an_earlier_version_of_a_blob_is_noticed(path: Path) -> None:
    old = next((path / SEALED).glob("marks.*")).read_bytes()
    with Vault.open(path) as vault:
        vault.put("marks", b"newer marks")
    next((path / SEALED).glob("marks.*")).write_bytes(old)
    assert "was changed, or is not the file of this name" in noticed(path)[0]


def test_an_earlier_head_is_noticed(path: Path) -> None:
    old = (path / HEAD).read_bytes()
    with Vault.open(path) as vault:
        vault.record([issued(3, "bob", "d" * 64)])
    (path / HEAD).write_bytes(old)
    assert any("something was added after the last of 4 entries" in problem for problem in noticed(path))
    with pytest.raises(Damaged, match="open the vault read-only and audit it"):
        Vault.open(path)


def rechain(lines: list[bytes]) -> list[bytes]:
    """What a forger without the key can do: number and chain all entries anew."""
    previous, forged = GENESIS, []
    for number, line in enumerate(lines):
        forged.append(canonical({**json.loads(line), "n": number, "previous": previous}) + b"\n")
        previous = line_hash(forged[-1])
    return forged


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [lines[0], *lines[2:]], "entry 1 is missing"),
        (lambda lines: [lines[0], lines[3]], "entries 1 to 2 are missing"),
        (lambda lines: [lines[0], lines[2]], "the tail was cut off: of 4 acknowledged entries 2 are there"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], "inserted or reordered"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "inserted or reordered"),
        (lambda lines: lines[:-1], "the tail was cut off: of 4 acknowledged entries 3 are there"),
        (lambda lines: [*lines[:-1], lines[-1][:-9]], "cut off"),
        (lambda lines: [], "the tail was cut off"),
        (lambda lines: [*lines, lines[-1]], "something was added"),
        (lambda lines: [*lines, b"{"], "something was added"),
        (lambda lines: [lines[0], lines[1].replace(b"alice", b"carol"), *lines[2:]], "entry 1 was changed"),
        (lambda lines: [*lines[:3], lines[3].replace(b"alice", b"carol")], "the last entry was changed"),
        (
            lambda lines: rechain([*lines[:3], lines[3].replace(b"alice", b"carol")]),
            "the last entry was changed",
        ),
        (lambda lines: rechain([lines[0], lines[2], lines[1], lines[3]]), "the whole chain was rewritten"),
        (lambda lines: rechain([lines[0], *lines[2:]]), "cut off"),
    ],
)
def test_a_log_that_was_tampered_with(path: Path, change: Callable[[list[bytes]], list[bytes]], says: str) -> None:
    log = path / LOG
    log.write_bytes(b"".join(change(log.read_bytes().splitlines(keepends=True))))
    problems = noticed(path)
    assert any(says in problem for problem in problems), problems
    both = ["log.jsonl: entry 1 is missing"] if "2 are there" in says else []
    assert problems[:-1] == both, "each fault is named once"
    with Vault.open(path, readonly=True) as vault:
        try:
            list(vault.log())
        except Damaged:
            pass
        else:
            assert says == "something was added", "what was acknowledged can still be read"


# Crashes


def test_killed_between_any_two_writes_it_opens_as_before_or_after(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop before each operation on the disk in turn."""

    class Killed(BaseException):
        pass

    real = {name: getattr(os, name) for name in ("fsync", "replace", "open", "unlink")}
    completed = False
    outcomes = set()
    for step in range(100):
        copy = tmp_path / f"copy{step}"
        shutil.copytree(path, copy)
        shutil.copy2(default_key_file(path), default_key_file(copy))
        left = step

        def stop(name: str) -> Callable[..., object]:
            def act(*arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return real[name](*arguments, **options)

            return act

        with Vault.open(copy) as vault:
            larger = vault.keyring.join("carol")
            for name in real:
                monkeypatch.setattr(os, name, stop(name))
            try:
                vault.save_keyring(larger)
                completed = True
            except Killed:
                pass
            finally:
                monkeypatch.undo()
        assert audit(copy) == [], f"read-only, killed at step {step}"
        with Vault.open(copy) as vault:
            assert vault.audit() == []
            joined = "carol" in vault.keyring.clients
            assert joined == (len(vault.commitments) == 2) == (len(list(vault.log())) == 5)
            assert len(json.loads((copy / PUBLIC).read_bytes())["commitments"]) == 1 + joined
            assert sorted(f.name.split(".")[0] for f in (copy / SEALED).iterdir()) == [
                "checkpoint",
                "commitments",
                "keyring",
                "marks",
                "signing-key",
            ]
            outcomes.add(joined)
            vault.record([issued(9, "alice", "e" * 64)])
            assert vault.audit() == []
        if completed:
            break
    assert completed
    assert outcomes == {False, True}


def test_half_written_lines_after_a_decided_commit_are_completed(path: Path) -> None:
    with Vault.open(path) as vault:
        before = (path / LOG).read_bytes()
        heads: list[bytes] = []
        write = vault.storage.write_head

        def spy(head: Head) -> None:
            write(head)
            heads.append((path / HEAD).read_bytes())

        vault.storage.write_head = spy  # type: ignore[method-assign]
        vault.record([issued(3, "alice", "d" * 64), issued(3, "bob", "e" * 64)])
    after = (path / LOG).read_bytes()
    for length in [*range(len(before), len(after), 7), len(after)]:
        (path / HEAD).write_bytes(heads[0])
        (path / LOG).write_bytes(after[:length])
        assert audit(path) == []
        assert len(events(path)) == 6
        Vault.open(path).close()
        assert (path / LOG).read_bytes() == after
    (path / HEAD).write_bytes(heads[0])
    (path / LOG).write_bytes(before + b"forged\n")
    assert audit(path) != []
    (path / LOG).write_bytes(before + b"\0" * 5000)
    Vault.open(path).close()
    assert (path / LOG).read_bytes() == after, "what a power cut left there is written over"
    (path / HEAD).write_bytes(heads[0])
    (path / LOG).write_bytes(before[:-5])
    assert any("cut off" in problem for problem in audit(path))


@pytest.mark.parametrize("kills", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_loses_nothing_acknowledged(path: Path, tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    acknowledged = tmp_path / "acknowledged"
    acknowledged.touch()
    with Vault.open(path, readonly=True) as vault:
        first = vault.head[0]
    for kill in range(kills):
        told = acknowledged.stat().st_size
        with writer(path, acknowledged):
            deadline = time.monotonic() + 60
            # Half of the writers are killed early, perhaps in the middle of recovering, the others at work.
            while kill % 2 and acknowledged.stat().st_size == told and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(chance.random() * 0.03)
        assert audit(path) == [], f"read-only, after kill {kill}"
        with Vault.open(path) as vault:
            assert vault.audit() == []
            entries = list(vault.log())[first:]
            rounds = {int(line) for line in acknowledged.read_text().splitlines()}
            recorded, others = ([e["round"] for e in entries if e["client"] == client] for client in ("alice", "bob"))
            assert recorded == others, "a round is recorded for all clients or for none"
            assert rounds <= set(recorded)
            # At most one unacknowledged round per kill may be there.
            assert len(recorded) <= len(rounds) + kill + 1
            if entries:
                assert vault.get("checkpoint") == entries[-1]["model"].encode() * 50
    assert len(rounds) >= kills // 2


def test_a_reader_beside_a_busy_writer_sees_no_faults(path: Path, tmp_path: Path) -> None:
    with writer(path, tmp_path / "acknowledged"), Vault.open(path, readonly=True) as reader:
        before, end = reader.head[0], time.monotonic() + 1
        while time.monotonic() < end or reader.head[0] == before:
            assert reader.audit() == []
            assert reader.get("checkpoint")
            assert len(list(reader.log())) >= before
