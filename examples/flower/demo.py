"""A federation on Flower's deployment engine, from nothing to a named leaker, all on this machine.

    python examples/flower/demo.py --out runs/demo-flower

It starts a SuperLink and four SuperNodes with TLS and SuperNode authentication, trains the app beside this file on
them, takes the model that one of the nodes trained, and traces it with the vault that the server filled. Everything
listens on 127.0.0.1 and is stopped in the end, whatever happens.
"""

import ipaddress
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

sys.path.insert(0, str(Path(__file__).parents[1]))

from deployments import BIN, HOST, Processes, finished, free_ports, listens, main, say, trace_all
from tramark.lab.data import load

APP = Path(__file__).parent
LINK = "superlink"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Deployment(Processes):
    """A SuperLink and SuperNodes named site-0, site-1, …, each in processes of its own.

    with Deployment(Path("out"), sites=4) as deployment:
        deployment.start()
        deployment.finish(deployment.begin({"num-server-rounds": 6, "vault": "/path/to/vault"}))

    What a node last trained is in `kept`, logs are in `logs`, and Flower's own files in `home`. Sites in `nameless` are
    registered without their names.
    """

    def __init__(self, out: Path, *, sites: int, nameless: Collection[str] = ()) -> None:
        out = out.absolute()
        self.home, logs, self.kept = (out / name for name in ("flower", "logs", "kept"))
        for folder in (self.home, logs, self.kept):
            folder.mkdir(parents=True)
        self.sites, self.nameless = [f"site-{number}" for number in range(sites)], nameless
        self.port, *ports = free_ports(1 + sites)
        self._ports = dict(zip(self.sites, ports, strict=True))
        found = {"FLWR_HOME": str(self.home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        super().__init__(logs, at=self.home, environment=QUIET | found, last=LINK)
        self._nodes: dict[str, str] = {}
        self._runs = 0
        make_certificates(self.home)
        for site in self.sites:
            make_key(self.home / site)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "demo"\n\n[superlink.demo]\naddress = "{HOST}:{self.port}"\n'
            f'root-certificates = "{self.home / "ca.crt"}"\n'
        )

    def start(self) -> None:
        """Start the SuperLink, register the nodes' public keys under their names, and start the nodes."""
        self.start_link()
        for site in self.sites:
            name = () if site in self.nameless else ("--name", site)
            said = self.flwr("supernode", "register", str(self.home / f"{site}.pub"), "demo", *name)
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
        self.wait(lambda: listens(self.port), LINK, "does not listen")

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


def _toml(config: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def demo(out: Path, rounds: int, leaker: str) -> dict[str, Any]:
    """Train, leak, trace; gives the summary."""
    # Here, and not by four nodes at once, for it may have to be fetched.
    data = load("auto").name
    vault = out.absolute() / "vault"
    with Deployment(out, sites=4) as deployment:
        say("a SuperLink and four SuperNodes start, with TLS and SuperNode authentication")
        deployment.start()
        say(f"{', '.join(deployment.sites)} are registered and online; they train on {data} for {rounds} rounds")
        settings: dict[str, Any] = {"num-server-rounds": rounds, "warmup-rounds": rounds - 2, "fraction-evaluate": 0.0}
        settings |= {"local-epochs": 3, "data": data, "vault": str(vault)}
        deployment.finish(deployment.begin(settings))
    done = finished(vault)
    say(f"{done} rounds are done and everything is stopped; a model turns up, and nobody says whose it is")
    kept = {site: deployment.kept / f"{site}.safetensors" for site in deployment.sites}
    return {"data": data, "rounds": done, **trace_all(out, vault, kept, leaker)}


if __name__ == "__main__":
    main(__doc__, Path("runs/demo-flower"), demo)
