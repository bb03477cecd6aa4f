"""Trace a leaked model behind servers that want their inputs, or give their labels, in twelve other ways than expected.

Each server takes JSON on this machine and answers with a label alone. Nothing is stated about how it is fed: the probe
has to find out. Models without a mark, behind the same servers, must not be accused, nor doubted where they are fed
rightly.

    tramark demo --out demo
    python benchmarks/feeding.py demo demo/leaked.safetensors --client client-3 --unmarked plain-*.safetensors
"""

import argparse
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import JsonTemplate, Vault, open_suspect, trace
from tramark.keys.sources import Source
from tramark.lab import models
from tramark.suspects.weights import load_into, read_weights

TEMPLATE = JsonTemplate(body={"x": "{list}"}, label="label")
NAMES = ("ankle boot", "bag", "coat", "dress", "pullover", "sandal", "shirt", "sneaker", "top", "trouser")
"""Names of ten labels; in the order of the alphabet, so that they do not tell which is which."""

Way = Callable[[Tensor], Tensor]
"""What a server makes of the input that it gets: the picture as values from 0 to 1. It fails on any other shape."""


@dataclass(frozen=True)
class Server:
    """How a server wants its inputs and says its labels."""

    picture: Way
    label: Callable[[int], Any] = int


def _shaped(*shape: int) -> Way:
    def picture(x: Tensor) -> Tensor:
        if tuple(x.shape) != shape:
            raise ValueError(f"shape {tuple(x.shape)}, not {shape}")
        return x

    return picture


def servers(source: Source) -> dict[str, Server]:
    """A server that is fed as the federation does, and twelve that are not."""
    channels, height, width = source.shape
    own, shape = _undone(source), _shaped(*source.shape)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1)).tolist()

    def grey(x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True) if channels == 1 else x

    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x[None], size=(height, width), mode="bilinear", antialias=True)[0]

    return {
        "as the federation": Server(lambda x: own(shape(x))),
        "values 0…255": Server(lambda x: shape(x) / 255),
        "values 0…1": Server(shape),
        "values of ImageNet": Server(lambda x: shape(x) * 0.226 + 0.449),
        "channels last": Server(lambda x: own(_shaped(height, width, channels)(x).movedim(-1, 0))),
        "a row of numbers": Server(lambda x: own(_shaped(channels * height * width)(x).view(source.shape))),
        "colour for grey": Server(lambda x: own(grey(_shaped(3, height, width)(x)))),
        "32×32": Server(lambda x: resized(own(_shaped(channels, 32, 32)(x)))),
        "224×224, colour, last, 0…255": Server(lambda x: resized(grey(_shaped(224, 224, 3)(x).movedim(-1, 0) / 255))),
        "labels from 1": Server(lambda x: own(shape(x)), lambda label: label + 1),
        "labels by name": Server(lambda x: own(shape(x)), lambda label: NAMES[label]),
        "labels in another order": Server(lambda x: own(shape(x)), lambda label: order[label]),
        "dark for bright": Server(lambda x: 1 - own(shape(x))),
    }


def _undone(source: Source) -> Way:
    """What takes the federation's own normalisation back."""
    low, high = (source.prepare(torch.full((1, *source.shape), value, dtype=torch.uint8))[0] for value in (0, 255))
    return lambda x: (x - low.mean((1, 2), keepdim=True)) / (high - low).mean((1, 2), keepdim=True)


@contextmanager
def serving(model: nn.Module, server: Server, source: Source) -> Iterator[str]:
    """The address of a model behind a server."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            x = torch.tensor(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["x"])
            try:
                inputs = source.prepare(server.picture(x)[None] * 255)
                with torch.no_grad():
                    said, status = {"label": server.label(int(model(inputs).argmax()))}, 200
            except (ValueError, RuntimeError) as error:
                said, status = {"error": str(error)}, 422
            octets = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(octets)))
            self.end_headers()
            self.wfile.write(octets)

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/classify"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def trace_behind(run: Path, model: nn.Module, server: Server, **options: Any) -> dict[str, Any]:
    """The verdict about a model behind a server of which nothing is known, as plain values.

    A remote suspect that is named burns the questions that it saw, so each trace has a copy of the vault.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(run / "vault", Path(folder) / "vault")
        shutil.copy(run / "vault.key", Path(folder) / "vault.key")
        with Vault.open(Path(folder) / "vault", readonly=True) as vault:
            source = vault.keyring.source
            with serving(model, server, source) as address:
                suspect = open_suspect(address, template=TEMPLATE, conventions=source.prepare)
                return trace(suspect, vault, **options).to_dict()


def load(file: Path, described: Mapping[str, Any]) -> nn.Module:
    """The model in a file of weights."""
    model = models.build(described["model"], input_shape=tuple(described["input_shape"]), classes=described["classes"])
    return load_into(model, read_weights(file), file).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("leaked", type=Path, help="weights of a client's model")
    parser.add_argument("--client", required=True, help="whose model it is")
    parser.add_argument("--unmarked", nargs="*", type=Path, default=[], help="weights of models without a mark")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    rows = []
    with Vault.open(options.run / "vault", readonly=True) as vault:
        described, source = json.loads(vault.get("model")), vault.keyring.source
    leaked, *unmarked = (load(file, described) for file in (options.leaked, *options.unmarked))
    for name, server in servers(source).items():
        found = trace_behind(options.run, leaked, server)
        row = {
            "server": name,
            "leaked": ", ".join(found["clients"]) or found["finding"],
            "right": found["clients"] == [options.client],
            "public": found["probe"]["queries"],
            "queries": found["queries"],
            "doubt": found["doubt"],
        }
        others = [trace_behind(options.run, model, server) for model in unmarked]
        row["unmarked"] = [f"{one['finding']}{' (doubted)' if one['doubt'] else ''}" for one in others]
        rows.append(row)
        if not options.json:
            alike = {one: row["unmarked"].count(one) for one in row["unmarked"]}
            told = ", ".join(f"{count} {one}" for one, count in alike.items())
            verdict = row["leaked"] + (f": {row['doubt']}" if row["doubt"] else "")
            print(f"| {name} | {verdict} | {row['public']} + {row['queries']} | {told} |", flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
