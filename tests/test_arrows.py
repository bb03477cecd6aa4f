"""The rooms of the house: which part of the package may know which."""

import ast
import sys
from pathlib import Path

import pytest

import tramark

ROOT = Path(tramark.__file__).parent

# Each room with the rooms it may import from; what is listed later may know what is listed earlier, not the reverse.
MAY_KNOW: dict[str, set[str]] = {
    "jpeg": set(),
    "streams": set(),
    "weights": set(),
    "layers": set(),
    "triggers": {"streams"},
    "keys": {"streams", "triggers"},
    "region": {"weights"},
    "drift": {"weights"},
    "split": {"layers"},
    "retouch": {"drift", "layers", "split"},
    "fleet": {"region", "weights"},
    "inject": {"drift", "fleet", "keys", "layers", "region", "retouch", "split", "triggers", "weights"},
    "server": {"drift", "fleet", "inject", "keys", "weights"},
}
CORE = set(MAY_KNOW)
MAY_KNOW |= {
    "packing": set(),
    "commitment": CORE,
    "vault": CORE | {"commitment", "packing"},
    "data": set(),
    "models": set(),
    "tracing": CORE | {"models", "commitment", "vault"},
    "methods": CORE | {"tracing"},
    "federation": CORE | {"commitment", "data", "models", "methods", "packing", "tracing", "vault"},
    "attacks": CORE | {"data", "models", "methods", "tracing", "federation"},
    "cli": CORE | {"attacks", "data", "models", "methods", "tracing", "federation", "vault", "commitment"},
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{a.name}" for a in node.names} if node.module == "tramark" else {node.module}
    return found


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


FILES = sorted(p for p in ROOT.rglob("*.py") if room(p) not in ("__init__", "__main__"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_point_one_way(path: Path) -> None:
    known = {name.split(".")[1] for name in imports(path) if name.startswith("tramark.")} - {"__version__"}
    assert known - {room(path)} <= MAY_KNOW[room(path)]


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in CORE], ids=lambda p: str(p.relative_to(ROOT)))
def test_core_knows_torch_and_nothing_else(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)} - {"tramark", "torch"}
    assert outside <= set(sys.stdlib_module_names) - {"os", "pathlib", "io", "socket", "logging", "tempfile", "shutil"}
    calls = {
        n.func.id
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert not calls & {"print", "open", "input"}
