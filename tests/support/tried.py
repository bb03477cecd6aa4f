"""Runs leaked models behind real servers, in environments of their own where these are heavy, and keeps what came of
it: docs/reference/tried.json, from which the table of docs/reference/suspects.md is written."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tried_rows import ROWS, Row

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "suspects" / "served" / "programs"
PAGES = ROOT / "docs" / "reference"
RECORD, DOCS = PAGES / "tried.json", PAGES / "suspects.md"
BEGIN, END = "<!-- tried: written by `make test-servers` -->\n", "<!-- /tried -->"
PATIENCE = 180
"""Seconds in which a server must be ready. Heavy ones need half a minute on a busy machine."""


def environment(row: Row, cache: Path) -> Path:
    """The folder with the packages that a row needs, made if it is not there; the test is skipped if they cannot be
    had."""
    folder = cache / row.of
    told = folder / "needs.txt"
    if told.is_file() and told.read_text() == "\n".join(row.needs):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for words in _installing(row, folder):
        try:
            done = subprocess.run(words, capture_output=True, text=True, cwd=folder)
        except FileNotFoundError:
            pytest.skip(f"{row.name}: there is no {words[0]}")
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
            pytest.skip(f"{row.name} cannot be installed: {said[-1]}")
    told.write_text("\n".join(row.needs))
    return folder


def _installing(row: Row, folder: Path) -> Iterator[list[str]]:
    if row.start[0] == "node":
        # Without its script, which fetches what is for graphics cards.
        yield ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *row.needs]
    elif row.start == Row.start and "onnxruntime" not in row.needs:
        # What is to run beside tramark: the packages alone, to be put before ours.
        yield [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *row.needs]
    else:
        yield [sys.executable, "-m", "venv", str(folder)]
        yield [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *row.needs]


def version_of(row: Row, folder: Path | None) -> str:
    """The version of what was run."""
    if folder is None:
        return version(row.of)
    if row.start[0] == "node":
        return str(json.loads((folder / "node_modules" / row.of / "package.json").read_text())["version"])
    (found,) = folder.rglob(f"{row.of.replace('-', '_')}-*.dist-info")
    return found.name.removesuffix(".dist-info").partition("-")[2]


@contextlib.contextmanager
def serving(row: Row, folder: Path | None, workspace: Path) -> Iterator[int]:
    """Starts a row's server with the leaked model of a workspace; gives its port, and ends it by its process group."""
    port, *others = _free(3)
    assert row.program is not None
    python = sys.executable if folder is None or row.start[0] == "node" else str(folder / "bin" / "python")
    fill = {"python": python, "program": str((PROGRAMS / row.program).resolve()), "port": str(port)}
    words = [word.format(**fill) for word in row.start]
    known = {
        "MODEL": str(workspace / "leaked.onnx"),
        "PORT": str(port),
        "HOME": str(workspace),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(PROGRAMS),
        "NODE_PATH": "" if folder is None else str(folder / "node_modules"),
        "SERVED_KEY": os.environ.get("SERVED_KEY", ""),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "BENTOML_DO_NOT_TRACK": "True",
        "RAY_USAGE_STATS_ENABLED": "0",
        "MLSERVER_HOST": "127.0.0.1",
        "MLSERVER_PARALLEL_WORKERS": "0",
        "MLSERVER_HTTP_PORT": str(port),
        "MLSERVER_GRPC_PORT": str(others[0]),
        "MLSERVER_METRICS_PORT": str(others[1]),
    }
    path = os.environ.get("PATH", "")
    known["PATH"] = path if folder is None else f"{folder / 'bin'}{os.pathsep}{path}"
    log = workspace / "server.log"
    with log.open("w") as told:
        process = subprocess.Popen(
            words, cwd=workspace, env=known, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}{row.ready}", log)
        yield port
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            # A server that knows the way, but not to it, is up.
            if error.code < 500 and not url.endswith("ready"):
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server does not start:\n{log.read_text()[-4000:]}")


def _free(count: int) -> list[int]:
    """Ports that nobody listens at."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def record(row: Row, told: str, verdict: Mapping[str, Any]) -> None:
    """Notes what came of a row, and writes the table anew, if $TRAMARK_RECORD asks for it."""
    if not os.environ.get("TRAMARK_RECORD"):
        return
    known = {one["name"]: one for one in recorded()}
    known[row.name] = {
        "name": row.name,
        "version": f"{row.of} {told}",
        "command": row.command,
        "template": row.template,
        "program": row.program,
        "verdict": ", ".join(verdict["clients"]) or verdict["finding"],
        "public": verdict["probe"]["queries"] if verdict.get("probe") else 0,
        "queries": verdict["queries"],
    }
    rows = [known[one.name] for one in ROWS if one.name in known]
    RECORD.write_text(json.dumps(rows, indent=2) + "\n")
    write_table(rows)


def write_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the table of docs/reference/suspects.md anew."""
    before, _, rest = DOCS.read_text().partition(BEGIN)
    DOCS.write_text(before + BEGIN + table(rows) + END + rest.partition(END)[2])


def recorded() -> list[dict[str, Any]]:
    """What came of each row when it was last recorded."""
    return list(json.loads(RECORD.read_text())) if RECORD.exists() else []


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of docs/reference/suspects.md."""
    lines = ["| server or format | tried with | command | `template.json` | verdict |", "|---|---|---|---|---|"]
    for row in rows:
        command = row["command"].replace("http://127.0.0.1:8000", "URL")
        template = f"`{json.dumps(row['template'])}`" if row["template"] else ""
        asked = f"{row['verdict']} ({row['public']} + {row['queries']})"
        lines.append(f"| {row['name']} | {row['version']} | `{command}` | {template} | {asked} |")
    missing = [row.name for row in ROWS if row.name not in {one["name"] for one in rows}]
    if missing:
        lines += ["", f"Programs that are there, but were not run yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"
