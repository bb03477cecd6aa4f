"""A federation on Flower's deployment engine, from nothing to a named leaker, all on this machine.

    python examples/flower/demo.py --out runs/demo-flower

It starts a SuperLink and four SuperNodes with TLS and SuperNode authentication, trains the app beside this file on
them, takes the model that one of the nodes trained, and traces it with the vault that the server filled. Everything
listens on 127.0.0.1 and is stopped in the end, whatever happens.
"""

import argparse
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from flowerapp.task import MODEL
from tramark import open_suspect, trace
from tramark.lab.data import load
from tramark.lab.models import build
from tramark.vault.store import Vault

APP = Path(__file__).parent
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
LINK = "superlink"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "NO_PROXY": HOST,
    "no_proxy": HOST,
}


class Deployment:
    """A SuperLink and SuperNodes named site-0, site-1, …, each in processes of its own.

    with Deployment(Path("out"), sites=4) as deployment:
        deployment.start()
        deployment.finish(deployment.begin({"num-server-rounds": 6, "vault": "/path/to/vault"}))

    What a node last trained is in `kept`, logs are in `logs`, and Flower's own files in `home`.
    """

    def __init__(self, out: Path, *, sites: int) -> None:
        out = out.absolute()
        self.home, self.logs, self.kept = (out / name for name in ("flower", "logs", "kept"))
        for folder in (self.home, self.logs, self.kept):
            folder.mkdir(parents=True)
        self.sites = [f"site-{number}" for number in range(sites)]
        self.port, *ports = _free_ports(1 + sites)
        self._ports = dict(zip(self.sites, ports, strict=True))
        found = {"FLWR_HOME": str(self.home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        self._environment = os.environ | QUIET | found
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self._groups: dict[int, str] = {}
        self._nodes: dict[str, str] = {}
        self._runs = 0
        make_certificates(self.home)
        for site in self.sites:
            make_key(self.home / site)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "demo"\n\n[superlink.demo]\naddress = "{HOST}:{self.port}"\n'
            f'root-certificates = "{self.home / "ca.crt"}"\n'
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the SuperLink, register the nodes' public keys under their names, and start the nodes."""
        self.start_link()
        for site in self.sites:
            said = self.flwr("supernode", "register", str(self.home / f"{site}.pub"), "demo", "--name", site)
            self._nodes[site] = str(said["node-id"])
        for site in self.sites:
            self.start_node(site)
        self.wait_for_nodes(*self.sites)

    def start_link(self) -> None:
        """Start the SuperLink; with what it knew, if it ran before."""
        self._start(
            LINK,
            "flower-superlink",
            *("--ssl-ca-certfile", self.home / "ca.crt"),
            *("--ssl-certfile", self.home / "server.crt", "--ssl-keyfile", self.home / "server.key"),
            "--enable-supernode-auth",
            *("--database", self.home / "state.db"),
            *("--host", HOST, "--port", self.port),
        )
        self.wait(lambda: _listens(self.port), LINK, "does not listen")

    def start_node(self, site: str) -> None:
        """Start a SuperNode; after a crash it comes back with the same key."""
        number = self.sites.index(site)
        config = {
            "partition-id": number,
            "num-partitions": len(self.sites),
            "keep": str(self.kept / f"{site}.safetensors"),
        }
        self._start(
            site,
            "flower-supernode",
            *("--superlink", f"{HOST}:{self.port}", "--root-certificates", self.home / "ca.crt"),
            *("--auth-supernode-private-key", self.home / site),
            *("--host", HOST, "--port", self._ports[site]),
            *("--node-config", _toml(config)),
        )

    def wait_for_nodes(self, *sites: str) -> None:
        """Wait until the SuperLink sees these nodes online."""

        def online() -> bool:
            seen = {node["node-id"]: node["status"] for node in self.flwr("supernode", "list", "demo")["nodes"]}
            return all(seen.get(self._nodes[site]) == "online" for site in sites)

        self.wait(online, LINK, f"does not see {', '.join(sites)}")

    def begin(self, config: Mapping[str, Any]) -> str:
        """Begin to train the app with these settings; gives the run's name, after which its log is named."""
        self._runs += 1
        name = f"run-{self._runs}"
        self._start(name, "flwr", "run", APP, "demo", "--run-config", _toml(config), "--stream")
        return name

    def finish(self, run: str, *, seconds: float = 1800) -> None:
        """Wait until a run has ended well."""
        self.wait(lambda: self._parts[run].poll() is not None, LINK, f"does not end {run}", seconds)
        del self._parts[run]
        log = self.log(run)
        number = re.search(r"started run (\d+)", log)
        status = self.flwr("list", "demo", "--run-id", number[1])["runs"][0]["status"] if number else "not started"
        if status != "finished:completed":
            raise RuntimeError(f"{run} is {status}:\n{log[-3000:]}")

    def log(self, name: str) -> str:
        """What a run, a node or the SuperLink has said so far."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def flwr(self, *words: str) -> dict[str, Any]:
        """A command of Flower's; gives what it says."""
        done = subprocess.run(
            [str(BIN / "flwr"), *words, "--format", "json"],
            cwd=self.home,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        try:
            said: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            said = {"error-message": done.stdout + done.stderr}
        if not said.get("success"):
            raise RuntimeError(f"flwr {' '.join(words)}: {said.get('error-message', said)}")
        return said

    def kill(self, name: str) -> None:
        """End the SuperLink or a node as a power cut would: at once, with all that it started."""
        process = self._parts.pop(name)
        for pid in self._members(process.pid):
            _signal(pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop all that was started: nodes before the SuperLink, and those that do not listen the hard way."""
        # Whoever presses Ctrl-C once more wants the hard way for all.
        with suppress(KeyboardInterrupt):
            for name in sorted(self._parts, key=lambda name: name == LINK):
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
        """The ids of all processes that this deployment has started, itself or by others, and that live."""
        rows = _processes()
        # A number that the system has given to somebody else meanwhile is told by when that one began.
        leaders = {group: rows[group].began for group in self._groups if group in rows}
        ours = {group for group, began in self._groups.items() if leaders.get(group, began) == began}
        return {pid for pid, row in rows.items() if row.group in ours}

    def wait(self, done: Callable[[], bool], name: str, problem: str, seconds: float = 120) -> None:
        """Wait for something that the SuperLink, or a node, is to do; it must live until then."""
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
                cwd=self.home,
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


def make_certificates(folder: Path) -> None:
    """A certificate authority and a certificate for 127.0.0.1: ca.crt, server.crt and server.key."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    own, here = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("tramark demo", HOST))
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer_name=own, not_valid_before=now, not_valid_after=now + timedelta(days=2))
    of_authority = (
        builder.subject_name(own)
        .public_key(authority.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    of_server = (
        builder.subject_name(here)
        .public_key(server.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
    )
    for name, certificate in (("ca.crt", of_authority), ("server.crt", of_server)):
        (folder / name).write_bytes(certificate.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM))
    _write_secret(folder / "server.key", server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def make_key(path: Path) -> None:
    """A key pair as `ssh-keygen -t ecdsa -b 384` makes it: PATH and PATH.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.with_name(path.name + ".pub").write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )


def _write_secret(path: Path, secret: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server((HOST, 0))).getsockname()[1] for _ in range(number)]


def _listens(port: int) -> bool:
    with socket.socket() as end:
        return end.connect_ex((HOST, port)) == 0


def _toml(config: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def demo(out: Path, rounds: int, leaker: int) -> dict[str, Any]:
    """Train, leak, trace; gives the summary."""
    # Here, and not by four nodes at once, for it may have to be fetched.
    data = load("auto").name
    began = time.monotonic()
    vault = out.absolute() / "vault"
    with Deployment(out, sites=4) as deployment:
        _say("a SuperLink and four SuperNodes start, with TLS and SuperNode authentication")
        deployment.start()
        _say(f"{', '.join(deployment.sites)} are registered and online; they train on {data} for {rounds} rounds")
        settings: dict[str, Any] = {"num-server-rounds": rounds, "warmup-rounds": rounds - 2, "fraction-evaluate": 0.0}
        settings |= {"local-epochs": 3, "data": data, "vault": str(vault)}
        deployment.finish(deployment.begin(settings))
    done = finished(vault)
    _say(f"{done} rounds are done and everything is stopped; a model turns up, and nobody says whose it is")
    kept = {site: deployment.kept / f"{site}.safetensors" for site in deployment.sites}
    suspect = out / "leaked.safetensors"
    shutil.copyfile(kept[f"site-{leaker}"], suspect)
    words = ["tramark", "trace", str(vault), str(suspect), "--model", MODEL]
    _say(f"$ {' '.join(words)}")
    subprocess.run([str(BIN / words[0]), *words[1:]], stdout=sys.stderr)
    right = {site: named(vault, file) == (site,) for site, file in kept.items()}
    return {
        "data": data,
        "rounds": done,
        "leaker": f"site-{leaker}",
        "named": named(vault, suspect),
        "vr": sum(right.values()) / len(right),
        "seconds": round(time.monotonic() - began, 1),
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-flower"), help="folder for vault, logs and models")
    parser.add_argument("--rounds", type=int, default=6, help="rounds in all; the models of the last two are marked")
    parser.add_argument("--leaker", type=int, default=2, choices=range(4), help="which of the four sites leaks")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("there must be at least three rounds")
    if (options.out / "vault").exists() or (options.out / "flower").exists():
        shutil.rmtree(options.out)
    # Being told to end is as good a reason as any to stop what was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        summary = demo(options.out, options.rounds, options.leaker)
    except KeyboardInterrupt:
        sys.exit(130)
    print(json.dumps(summary, indent=2))
    sys.exit(0 if summary["vr"] == 1.0 else 1)


if __name__ == "__main__":
    main()
