"""The rooms of the house: which room may know which, and what each may bring in from outside."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tramark

ROOT = Path(tramark.__file__).parent

# A room may know the rooms of lower floors, and none of its own floor but itself.
FLOORS = (
    {"errors", "evidence"},
    {"fleet", "keys"},
    {"marks", "suspects"},
    {"vault"},
    {"server", "tracing"},
    {"integrations", "report"},
    {"lab"},
    {"cli", "web"},
)
# The command that starts the desk is the only door between two rooms of one floor.
DOORS = {"cli/web.py": {"web"}}
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def imports(path: Path) -> set[str]:
    """All modules that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{a.name}" for a in node.names} if node.module == "tramark" else {node.module}
    return found


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


FILES = sorted(p for p in ROOT.rglob("*.py") if room(p) != "__init__")


def test_every_room_is_on_a_floor() -> None:
    assert {room(path) for path in FILES} <= FLOOR.keys()


@pytest.mark.parametrize("path", FILES, ids=named)
def test_arrows_point_one_way(path: Path) -> None:
    known = {name.split(".")[1] for name in imports(path) if name.startswith("tramark.")} - {"__version__", room(path)}
    known -= DOORS.get(named(path), set())
    upwards = {other for other in known if FLOOR[other] >= FLOOR[room(path)] and other != "errors"}
    assert not upwards


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in ("keys", "fleet", "marks")], ids=named)
def test_the_core_knows_torch_and_nothing_else(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)} - {"tramark", "torch"}
    assert outside <= set(sys.stdlib_module_names) - {"os", "pathlib", "io", "socket", "logging", "tempfile", "shutil"}
    calls = {
        n.func.id
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert not calls & {"print", "open", "input"}


@pytest.mark.parametrize("path", [p for p in FILES if room(p) == "evidence"], ids=named)
def test_evidence_knows_neither_torch_nor_the_product(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)
    assert outside <= {"tramark", "numpy", "scipy", "cryptography", "rfc3161_client"}


def drawn() -> dict[str, set[str]]:
    """The rooms on the map in docs/explanation/architecture.md, with the modules that each line names."""
    page = (Path(__file__).parent.parent / "docs" / "explanation" / "architecture.md").read_text()
    block = page.partition("```text\nsrc/tramark/\n")[2].partition("```")[0]
    rows = [line.split(maxsplit=1) for line in block.splitlines()]
    return {
        name.rstrip("/").removesuffix(".py"): set(text.rpartition(": ")[2].split(", ")) if ": " in text else set()
        for name, text in rows
    }


def test_the_map_is_the_tree() -> None:
    rooms = drawn()
    assert rooms.keys() == {room(path) for path in FILES}
    for name in rooms.keys() - {"errors", "server", "cli", "lab", "integrations"}:
        assert rooms[name] == {path.stem for path in (ROOT / name).glob("*.py")} - {"__init__"}, name
    for name in ("lab", "integrations"):
        folders = {path.name for path in (ROOT / name).iterdir() if (path / "__init__.py").exists()}
        assert rooms[name] == folders, name


def test_importing_tramark_loads_nothing_heavy() -> None:
    script = "import sys, tramark; assert not {'torch', 'numpy', 'scipy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_everything_that_is_promised_is_there() -> None:
    for name in tramark.__all__:
        assert getattr(tramark, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        tramark.nothing_of_the_kind  # noqa: B018
