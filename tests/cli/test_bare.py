"""An expert checks evidence without torch, with the packages that docs/reference/statement.md names."""

import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from statements import handed_over, traced
from traces import ring, vault_of

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_evidence_is_checked_with_what_the_documents_name_and_no_more(tmp_path: Path) -> None:
    named = re.search(
        r"pip install --no-deps tramark\npip install (.*)\n", (ROOT / "docs" / "reference" / "statement.md").read_text()
    )
    assert named is not None
    venv.create(tmp_path / "bare", with_pip=True)
    python = tmp_path / "bare" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install = [str(python), "-m", "pip", "install", "--quiet"]
    for words in (["--no-deps", str(ROOT)], shlex.split(named[1])):
        ended = subprocess.run([*install, *words], capture_output=True, text=True, check=False)
        if "Could not find a version" in ended.stderr:
            pytest.skip("there is no package index to install from")
        assert ended.returncode == 0, ended.stderr
    with vault_of(ring(), tmp_path) as vault:
        for name, text in zip(
            ("statement.json", "annex.json"), handed_over(vault, traced(vault, "hospital-3")), strict=True
        ):
            (tmp_path / name).write_bytes(text)
    program = "import sys; from tramark.cli import main; sys.argv[0] = 'tramark'; main()"
    words = ["statement.json", "--annex", "annex.json", "--commitment", "vault/commitment.json"]
    ended = subprocess.run(
        [str(python), "-X", "importtime", "-c", program, "evidence", "verify", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "finding: hospital-3\n" in ended.stdout
    assert not re.search(r"\| +torch", ended.stderr)
    golden = ROOT / "tests" / "golden" / "v1"
    old = [str(golden / "evidence.json"), "--commitment", str(golden / "vault" / "commitment.json")]
    ended = subprocess.run([str(python), "-c", program, "evidence", "verify", *old], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
