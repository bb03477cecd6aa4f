"""Time the first tutorial on a bare machine: an empty environment, a wheel of this checkout, a verdict.

The wheel is built first. Then everything that `docs/tutorials/first-verdict.md` shows is run in a new folder with
nothing but that environment's programs on the path, and compared with what the page says. Packages come from the
package index that pip is set up for. It fails if the page does not hold, or takes more than ten minutes.

    python benchmarks/first_verdict.py
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from pages import blocks, differ  # noqa: E402

PAGE = ROOT / "docs" / "tutorials" / "first-verdict.md"
LONGEST = 600.0


def wheel(folder: Path) -> Path:
    """A wheel of this checkout."""
    words = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built


def follow(folder: Path, built: Path) -> float:
    """Does what the page says, and prints the seconds of each block; gives their sum."""
    programs = folder / "environment" / "bin"
    outside = ("HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "https_proxy", "http_proxy", "no_proxy")
    inside = {name: value for name, value in os.environ.items() if name in outside or name.startswith("PIP_")}
    inside |= {"PATH": f"{programs}:/usr/bin:/bin", "COLUMNS": "200"}
    taken, printed = 0.0, ""
    begun = time.perf_counter()
    venv.create(folder / "environment", with_pip=True)
    for block in blocks(PAGE.read_text()):
        if block.kind == "text":
            differ(block.code, printed, f"{PAGE.name}, line {block.line}")
        if block.kind != "sh":
            continue
        code = block.code.replace("tramark[lab]", f"{built}[lab]")
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=folder,
            env=inside,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        printed = ended.stdout
        assert ended.returncode == 0, printed
        seconds, begun = time.perf_counter() - begun, time.perf_counter()
        taken += seconds
        print(f"{seconds:7.1f} s  {' '.join(block.code.split())[:90]}", flush=True)
    return taken


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as place:
        built = wheel(Path(place) / "dist")
        taken = follow(Path(place), built)
    print(f"{taken:7.1f} s  in all, on {os.cpu_count()} cores")
    if taken > LONGEST:
        sys.exit(f"more than {LONGEST:.0f} s")


if __name__ == "__main__":
    main()
