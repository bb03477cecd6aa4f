"""A federation over plain HTTP, in which every client's model can be traced: the server.

    python examples/http_loop/http_server.py --out runs/http --port 8080 --rounds 10

Clients fetch their model by GET /model and return what they trained by POST /update, as safetensors. A client shows
who it is by a secret of its own, which the server writes to `secrets.json` when it first starts. Stopped at any moment
and started again, the server goes on after the last round that was finished.
"""

import argparse
import hmac
import json
import os
import secrets
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread

from safetensors.torch import load, save

sys.path.insert(0, str(Path(__file__).parents[1] / "custom_loop"))

from train import CLIENTS, make_model, open_vault
from tramark import TraMark, UpdateError

ROUND, SAMPLES = "X-Round", "X-Samples"


class Rounds:
    """The rounds of a federation whose clients come when they like."""

    def __init__(self, server: TraMark, *, rounds: int, patience: float) -> None:
        self.server, self._rounds, self._patience = server, rounds, patience
        self._lock = Lock()
        self._aggregation = server.begin()
        self._first_came: float | None = None

    @property
    def over(self) -> bool:
        return self.server.round >= self._rounds

    def model(self, client: str) -> tuple[int, bytes] | None:
        """The number of the round and a client's own model for it; None if the client has to wait for the next."""
        with self._lock:
            if client in self._aggregation.taken or client in self._aggregation.refused:
                return None
            # The vault's log has the model before it leaves.
            return self.server.round, save(self.server.dispatch([client])[client])

    def take(self, client: str, round: int, update: bytes, samples: float) -> None:
        """Fold in what a client returned; `UpdateError` says why not."""
        with self._lock:
            if round != self.server.round or self.over:
                raise UpdateError(client, f"it is for round {round + 1}, which is over")
            self._first_came = self._first_came or time.monotonic()
            try:
                state = load(update)
            except Exception as error:
                self._aggregation.refuse(client, f"no safetensors ({type(error).__name__})")
            self._aggregation.add(client, state, samples)

    def end_if_due(self) -> None:
        """End the round once everybody has answered, or enough time has passed since the first did."""
        with self._lock:
            answered = {*self._aggregation.taken, *self._aggregation.refused}
            late = self._first_came is not None and time.monotonic() > self._first_came + self._patience
            if answered >= set(self.server.fleet.clients) or late:
                print(self.server.end(self._aggregation), flush=True)
                self._aggregation, self._first_came = self.server.begin(), None


class Handler(BaseHTTPRequestHandler):
    """What clients can ask for."""

    rounds: Rounds
    clients: dict[str, str]
    largest: int

    def do_GET(self) -> None:
        client = self._who()
        if client is None:
            self._answer(401)
        elif self.path != "/model":
            self._answer(404)
        elif self.rounds.over:
            self._answer(410, b"the training is over")
        elif (found := self.rounds.model(client)) is None:
            self._answer(204)
        else:
            self._answer(200, found[1], {ROUND: str(found[0])})

    def do_POST(self) -> None:
        client, size = self._who(), int(self.headers.get("Content-Length", 0))
        if client is None:
            return self._answer(401)
        if self.path != "/update":
            return self._answer(404)
        if size > self.largest:
            return self._answer(413)
        try:
            number, samples = int(self.headers[ROUND]), float(self.headers[SAMPLES])
        except (TypeError, ValueError):
            return self._answer(400, f"{ROUND} and {SAMPLES} must be numbers".encode())
        try:
            self.rounds.take(client, number, self.rfile.read(size), samples)
        except UpdateError as error:
            return self._answer(400, str(error).encode())
        self._answer(200)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of single requests."""

    def _who(self) -> str | None:
        """The client whose secret was shown."""
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        return next((name for name, own in self.clients.items() if hmac.compare_digest(shown, own.encode())), None)

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def secrets_of(path: Path) -> dict[str, str]:
    """Everybody's secret, made if this is the first time; the file is to be readable for the operator alone."""
    if not path.exists():
        made = json.dumps({name: secrets.token_urlsafe(32) for name in CLIENTS}, indent=2)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made)
    found: dict[str, str] = json.loads(path.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/http"), help="folder for the vault and the secrets")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--rounds", type=int, default=12, help="rounds in all")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for the last after the first")
    options = parser.parse_args()

    with open_vault(options.out / "vault") as vault:
        server = TraMark(make_model(), vault=vault, warmup_rounds=8)
        if server.resume():
            print(f"going on after round {server.round}", flush=True)
        Handler.rounds = Rounds(server, rounds=options.rounds, patience=options.patience)
        Handler.clients = secrets_of(options.out / "secrets.json")
        Handler.largest = len(save(server.fleet.state())) + 2**20
        with ThreadingHTTPServer(("127.0.0.1", options.port), Handler) as http:
            Thread(target=http.serve_forever, daemon=True).start()
            print(f"listening on 127.0.0.1:{options.port}", flush=True)
            while not Handler.rounds.over:
                Handler.rounds.end_if_due()
                time.sleep(0.05)
            # Time for the clients to hear that it is over.
            time.sleep(2)
            http.shutdown()


if __name__ == "__main__":
    main()
