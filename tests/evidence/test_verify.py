"""Evidence is checked where torch and everything that needs it is missing."""

import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"


def test_a_bundle_is_checked_without_torch() -> None:
    script = """
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class NoTorch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("there is no torch here")

sys.meta_path.insert(0, NoTorch())
from tramark import read_published, verify_bundle
golden = Path(sys.argv[1])
published = read_published((golden / "vault" / "commitment.json").read_bytes())
for name, accused in (("evidence.json", "bob"), ("evidence-company.json", "dora")):
    found = verify_bundle((golden / name).read_bytes(), published=published)
    assert (found.finding, found.clients) == ("client", (accused,)), found
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("tramark.")}
assert rooms == {"errors", "evidence"}, rooms
"""
    subprocess.run([sys.executable, "-c", script, str(GOLDEN)], check=True)
