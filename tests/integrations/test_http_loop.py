"""The example of a loop over HTTP: real sockets, a process for each client, and a server that is killed on its way."""

import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from safetensors.torch import load_file

from deployments import HOST, Processes, finished, free_ports, issued, listens
from train import CLIENTS, make_model
from tramark import trace
from tramark.vault.store import Vault

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "http_loop"
LOST = "oslo"


class Loop(Processes):
    """The example's server and clients."""

    def __init__(self, out: Path) -> None:
        (self.port,) = free_ports(1)
        self.out, self.vault, self.url = out, out / "vault", f"http://{HOST}:{self.port}"
        super().__init__(out, at=out, environment={}, last="server")

    def serve(self) -> None:
        words = ["--out", self.out, "--port", self.port, "--rounds", 11, "--patience", 5]
        self._start("server", "python", EXAMPLE / "http_server.py", *words)
        self.wait(lambda: listens(self.port), "server", "does not listen")

    def join(self, name: str) -> None:
        words = ["--name", name, "--secrets", self.out / "secrets.json", "--server", self.url]
        self._start(name, "python", EXAMPLE / "http_client.py", *words, "--keep", self.out / name)

    def ended(self, name: str) -> bool:
        return self._parts[name].poll() is not None

    def finish(self) -> None:
        """Wait until the clients have heard that it is over."""
        for name in self.clients():
            while not self.ended(name):
                self._parts[name].wait(timeout=300)

    def clients(self) -> list[str]:
        return [name for name in self._parts if name != "server"]

    def status(self, path: str, secret: str, body: bytes | None = None, **headers: str) -> int:
        """How the server answers a request."""
        sent = {"Authorization": f"Bearer {secret}", **{name.replace("_", "-"): v for name, v in headers.items()}}
        try:
            with urlopen(Request(self.url + path, data=body, headers=sent), timeout=30) as reply:
                return int(reply.status)
        except HTTPError as error:
            return error.code


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    """A federation that lost its server after eight rounds, and a client for good."""
    out = tmp_path_factory.mktemp("loop")
    with Loop(out) as loop:
        loop.serve()
        secrets = json.loads((out / "secrets.json").read_text())
        assert loop.status("/model", "guessed") == 401
        assert loop.status("/elsewhere", secrets[LOST]) == 404
        assert loop.status("/update", secrets[LOST], b"x") == 400
        assert loop.status("/update", secrets[LOST], b"x", X_Round="7", X_Samples="1") == 400
        for name in CLIENTS:
            loop.join(name)
        loop.wait(lambda: any(after == 9 for after, _ in issued(loop.vault)), "server", "does not reach round 10", 300)
        loop.kill("server")
        loop.kill(LOST)
        loop.serve()
        loop.finish()
    return loop


def test_it_goes_on_after_the_last_finished_round(loop: Loop) -> None:
    assert "going on after round 9" in loop.log("server")
    assert finished(loop.vault) == 11


def test_every_client_that_stayed_is_traced(loop: Loop) -> None:
    with Vault.open(loop.vault, readonly=True) as vault:
        keyring = vault.keyring
        assert vault.audit() == []
    for name in set(CLIENTS) - {LOST}:
        model = make_model()
        model.load_state_dict(load_file(loop.out / name))
        assert trace(model, keyring).clients == (name,)


def test_a_client_that_is_gone_is_not_waited_for(loop: Loop) -> None:
    assert "round 11: 4 updates used" in loop.log("server")


def test_nothing_is_left_running(loop: Loop) -> None:
    assert loop.running() == set()
