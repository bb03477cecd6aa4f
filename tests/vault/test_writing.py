"""Files are replaced whole, and only their owner can read them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tramark.vault.files import replace_file


def test_a_file_is_replaced_whole_and_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_file_has_its_mode_whatever_was_there(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    for name in ("file", "file.tmp"):
        (tmp_path / name).write_bytes(b"old")
        (tmp_path / name).chmod(0o666)
    replace_file(path, b"new", mode)
    assert path.stat().st_mode & 0o777 == mode


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_system_without_fcntl_is_told_in_one_sentence() -> None:
    script = """
import sys
sys.modules["fcntl"] = None
from tramark.errors import VaultError
try:
    import tramark.vault.store
except ImportError as error:
    assert isinstance(error, VaultError)
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert said.count("\n") == 1
    assert said.startswith("a vault needs Linux, macOS or another POSIX system")
