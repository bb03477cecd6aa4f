"""What is built can be installed in a bare environment, and does what the README says."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRAIN = "run --data digits --model mlp --clients 4 --samples-per-client 200 --local-epochs 2 --rounds 8 --warmup 6"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    ended = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], capture_output=True, text=True, check=False
    )
    if "Could not find a version" in ended.stdout + ended.stderr:
        pytest.skip("there is no package index to take the build's tools from")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out


@pytest.fixture(scope="module")
def bare(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which the wheel was installed; torch and the like are those of this one."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=True)
    (wheel,) = built.glob("*.whl")
    subprocess.run([place / "bin" / "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    # A plain line adds the folder and not what its own .pth files name, such as this checkout.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


def call(program: Path, *words: str, folder: Path, **environment: str) -> str:
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [program, *words],
        cwd=folder,
        env={**outside, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_a_wheel_is_enough_for_a_verdict(bare: Path, tmp_path: Path) -> None:
    home = call(bare / "python", "-c", "import tramark; print(tramark.__file__)", folder=tmp_path)
    assert Path(home).is_relative_to(bare.parent)
    call(bare / "tramark", *TRAIN.split(), "--out", "run", folder=tmp_path)
    said = call(
        bare / "tramark", "trace", "run", "run/trained/client-2.safetensors", "--report", "case", folder=tmp_path
    )
    assert "the mark of client-2" in said
    assert "client-2" in (tmp_path / "case" / "report.html").read_text()


@pytest.mark.slow
def test_a_shell_completes_its_commands(bare: Path, tmp_path: Path) -> None:
    words = {"_TRAMARK_COMPLETE": "complete_bash", "COMP_WORDS": "tramark vault ro", "COMP_CWORD": "2"}
    assert call(bare / "tramark", folder=tmp_path, **words).split() == ["rotate"]


@pytest.mark.slow
def test_the_source_archive_holds_what_a_packager_needs(built: Path) -> None:
    import tarfile

    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/test_package.py", "docs/conf.py"} <= names
    assert not any(name.startswith((".venv", "runs/", "demo/")) for name in names)
