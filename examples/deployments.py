"""What the demos of real deployments share: processes on this machine, and what a vault tells afterwards."""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tramark import open_suspect, trace
from tramark.lab.models import build
from tramark.vault.store import Vault

MODEL = "cnn"
"""The model that the demos train, by the name that `tramark trace --model` knows."""

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"


class Processes:
    """Processes that are started together, each with a log, and are all stopped in the end, whatever happens.

    `last` is the one that is stopped after all others.
    """

    def __init__(self, logs: Path, *, at: Path, environment: Mapping[str, str], last: str) -> None:
        self.logs, self._at, self._last = logs, at, last
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_PROXY": HOST, "no_proxy": HOST, **environment}
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self._groups: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def log(self, name: str) -> str:
        """What a process has said so far."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a process as a power cut would: at once, with all that it started."""
        process = self._parts.pop(name)
        for pid in self._members(process.pid):
            _signal(pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop all that was started; those that do not listen the hard way."""
        # Whoever presses Ctrl-C once more wants the hard way for all.
        with suppress(KeyboardInterrupt):
            for name in sorted(self._parts, key=lambda name: name == self._last):
                self._members(self._parts[name].pid)
                self._parts[name].terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._parts[name].wait(timeout=20)
        # Those that nobody here waits for are still seen for a moment after they were killed.
        deadline = time.monotonic() + 20
        while (left := self.running()) and time.monotonic() < deadline:
            for pid in left:
                _signal(pid, signal.SIGKILL)
            for process in self._parts.values():
                process.poll()
            time.sleep(0.1)
        self._parts.clear()

    def running(self) -> set[int]:
        """The ids of all processes that were started, from here or by others of them, and that live."""
        rows = _processes()
        # A number that the system has given to somebody else meanwhile is told by when that one began.
        leaders = {group: rows[group].began for group in self._groups if group in rows}
        ours = {group for group, began in self._groups.items() if leaders.get(group, began) == began}
        return {pid for pid, row in rows.items() if row.group in ours}

    def wait(self, done: Callable[[], bool], name: str, problem: str, seconds: float = 120) -> None:
        """Wait for something that a process is to do; it must live until then."""
        deadline = time.monotonic() + seconds
        while not done():
            if self._parts[name].poll() is not None:
                raise RuntimeError(f"{name} has ended:\n{self.log(name)[-3000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} {problem}:\n{self.log(name)[-3000:]}")
            time.sleep(0.5)

    def _start(self, name: str, command: str, *words: object) -> None:
        with (self.logs / f"{name}.log").open("ab") as log:
            self._parts[name] = subprocess.Popen(
                [str(BIN / command), *map(str, words)],
                cwd=self._at,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._members(self._parts[name].pid)

    def _members(self, root: int) -> set[int]:
        """A process and all that came of it."""
        rows = _processes()
        members = {root} & rows.keys()
        while new := {pid for pid, row in rows.items() if row.parent in members} - members:
            members |= new
        self._groups |= {pid: rows[pid].began for pid in members if rows[pid].group == pid}
        return members


class _Process(NamedTuple):
    parent: int
    group: int
    began: str


def _processes() -> dict[int, _Process]:
    """All processes of this machine that are not merely waiting to be buried."""
    words = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,lstart="]
    rows = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    fields = [row.split(maxsplit=4) for row in rows]
    return {
        int(pid): _Process(int(parent), int(group), began)
        for pid, parent, group, state, began in fields
        if state[0] != "Z"
    }


def issued(vault: Path) -> Iterator[tuple[int, str]]:
    """Which clients were sent a model after how many rounds, by the log of a vault that may be in use."""
    if not (vault / "log.jsonl").exists():
        return
    for line in (vault / "log.jsonl").read_text().splitlines(keepends=True):
        if line.endswith("\n") and (entry := json.loads(line))["event"] == "issued":
            yield entry["round"], entry["client"]


def finished(vault: Path) -> int:
    """How many rounds a vault holds."""
    with Vault.open(vault, readonly=True) as opened:
        return int((opened.saved() or {"round": 0})["round"])


def named(vault: Path, suspect: Path) -> tuple[str, ...]:
    """Whom a trace of a file names."""
    with Vault.open(vault, readonly=True) as opened:
        keyring = opened.keyring
    source = keyring.source
    model = build(MODEL, input_shape=source.shape, classes=keyring.classes)
    return trace(open_suspect(suspect, conventions=source.prepare, model=model), keyring).clients


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server((HOST, 0))).getsockname()[1] for _ in range(number)]


def listens(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as end:
        return end.connect_ex((HOST, port)) == 0


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def trace_all(out: Path, vault: Path, kept: Mapping[str, Path], leaker: str) -> dict[str, Any]:
    """Trace the leaker's model with the command line, and everybody's in this process; gives whom they name."""
    suspect = out / "leaked.safetensors"
    shutil.copyfile(kept[leaker], suspect)
    words = ["tramark", "trace", str(vault), str(suspect), "--model", MODEL]
    say(f"$ {' '.join(words)}")
    subprocess.run([str(BIN / words[0]), *words[1:]], stdout=sys.stderr)
    right = {site: named(vault, file) == (site,) for site, file in kept.items()}
    return {"leaker": leaker, "named": named(vault, suspect), "vr": sum(right.values()) / len(right)}


def say(line: str) -> None:
    """Tell whoever watches."""
    print(line, file=sys.stderr, flush=True)


def main(description: str | None, out: Path, demo: Callable[[Path, int, str], dict[str, Any]]) -> None:
    """Run a demo of four sites by its command line; it prints its summary as JSON."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=out, help="folder for vault, logs and models")
    parser.add_argument("--rounds", type=int, default=6, help="rounds in all; the models of the last two are marked")
    parser.add_argument("--leaker", type=int, default=2, choices=range(4), help="which of the four sites leaks")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("there must be at least three rounds")
    if (options.out / "vault").exists() or (options.out / "logs").exists():
        shutil.rmtree(options.out)
    # Being told to end is as good a reason as any to stop what was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        summary = demo(options.out, options.rounds, f"site-{options.leaker}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(json.dumps({**summary, "seconds": round(time.monotonic() - began, 1)}, indent=2))
    sys.exit(0 if summary["vr"] == 1.0 else 1)
