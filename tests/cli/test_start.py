"""Commands that need no torch run without it, and so start fast."""

import subprocess
import sys
from pathlib import Path

import pytest
from traces import case, ring, vault_of

from tramark.evidence.commitment import canonical

# A finder, since scipy looks at sys.modules["torch"] without a check for None.
WITHOUT_TORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"{name} must not be imported here")
sys.meta_path.insert(0, Missing())
from tramark.cli import main
sys.argv[0] = "tramark"
main()
"""


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a vault and the evidence.json of a trace."""
    folder = tmp_path_factory.mktemp("evidence")
    with vault_of(ring(), folder) as vault:
        _, bundle = case(vault, "hospital-3")
    (folder / "evidence.json").write_bytes(canonical(bundle))
    return folder


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--help",), "Find out who leaked"),
        (("--version",), "0."),
        (("vault", "show", "{}/vault"), "hospital-3"),
        (("vault", "audit", "{}/vault"), "clean"),
        (("evidence", "verify", "{}/evidence.json", "--commitment", "{}/vault/commitment.json"), "finding: hospital-3"),
        (("run", "--help"), "small-cnn"),
        (("trace", "--help"), "130"),
        (("attack", "--help"), "--list"),
        (("web", "--help"), "--port"),
        (("demo", "--help"), "ten clients"),
        (("export", "--help"), "safetensors"),
        (("study", "zoo", "--help"), "--held-back"),
    ],
)
def test_it_runs_without_torch(evidence: Path, words: tuple[str, ...], says: str) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *(word.format(evidence) for word in words)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert says in ended.stdout


def test_help_loads_neither_the_laboratory_nor_the_vault() -> None:
    script = (
        "import sys, tramark.cli; print(*(n for n in sys.modules if n.split('.')[0] in ('numpy', 'scipy', 'torch')))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []
