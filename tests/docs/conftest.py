"""A folder to play pages in, with `tramark` on the path and a warm process behind it."""

import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import warm
from pages import ROOT

import tramark

SUPPORT = ROOT / "tests" / "support"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# Nothing is installed by a test of a page, but what it asks for must exist. Targets of make are looked up, not made.
PROGRAMS = {
    "tramark": '#!/bin/sh\nexec "{python}" -S -E "{support}/warm.py" "{socket}" tramark "$@"\n',
    "python": '#!/bin/sh\nexec "{python}" "$@"\n',
    "pip": """#!/bin/sh
for word in "$@"; do
  case "$word" in tramark\\[*)
    for extra in $(echo "$word" | tr "[]," "   "); do
      case " tramark {extras} " in *" $extra "*) ;; *) echo "no extra $extra"; exit 1;; esac
    done;;
  esac
done
""",
    "make": '#!/bin/sh\nexec /usr/bin/make -n -C "{root}" "$@" >/dev/null\n',
}

Player = Callable[[Path], None]


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    """A folder of programs, and the warm process that runs `tramark`."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "socket"
        values = {
            "python": sys.executable,
            "support": SUPPORT,
            "socket": socket,
            "root": ROOT,
            "extras": " ".join(EXTRAS),
        }
        for name, text in PROGRAMS.items():
            program = Path(folder) / name
            program.write_text(text.format(**values))
            program.chmod(0o755)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(tramark.__file__).parents[1])}
        process = subprocess.Popen([sys.executable, str(SUPPORT / "warm.py"), str(socket)], env=environment)
        while not socket.exists():
            assert process.poll() is None
            time.sleep(0.05)
        yield Path(folder)
        process.terminate()
        process.wait()


@pytest.fixture
def play(programs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Player:
    """Plays a page in an empty folder."""
    for name in ("examples", "benchmarks", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TRAMARK_P")},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(tramark.__file__).parents[1])]),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "FLWR_HOME": str(tmp_path / ".flwr"),
        "PYTHONWARNINGS": "ignore",
    }

    def played(page: Path) -> None:
        words = [str(SUPPORT / "pages.py"), str(page)]
        code = warm.ask(str(programs / "socket"), words, str(tmp_path), environment)
        assert code == 0, "".join(capfd.readouterr())

    return played
