"""Time and peak memory of a server's round as the federation grows.

Each number of clients runs in a process of its own, so that its peak memory can be read. Clients return what they were
sent, moved a little in a few random directions; their updates arrive one by one, as from a network, and models are made
one by one as they are issued. Timed is a whole marked round: aggregate, make the marks, issue a model to everybody; the
time that clients take is left out.

    python benchmarks/scale.py --clients 10 30 100 300 1000 --plot scale.png --json

With `--registered`, so many clients are in a vault, of which `--sampled` are sent a model in each round. Timed are also
making the vault and tracing the model of one of them; the vault's size is counted. `cpu_seconds` is a round's processor
time, which other work on the machine changes less.

    python benchmarks/scale.py --registered 100 1000 10000 100000 1000000 --sampled 100 --plot huge.png
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tramark import Keyring, TraMark, Vault, trace
from tramark.lab.models import build
from tramark.vault.lock import default_key_file, make_key_file

SHAPES = {"cnn": (1, 28, 28), "small-cnn": (3, 32, 32), "alexnet": (3, 32, 32)}


def train(state: dict[str, Tensor], seed: int) -> None:
    """Move matrices a little, in place, in a few directions of their inputs that are the same for everybody."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in state.items():
        if tensor.dim() == 2:
            left = torch.randn(len(tensor), 4, generator=generator)
            right = torch.randn(4, tensor.shape[1], generator=torch.Generator().manual_seed(len(name)))
            tensor.addmm_(left, right, alpha=1e-4)


class Clients:
    """They return their models one by one, and the time that this takes is counted."""

    def __init__(self) -> None:
        self.seconds = self.busy = 0.0

    def updates(self, server: TraMark, clients: list[str] | None = None) -> Iterator[tuple[str, dict[str, Tensor]]]:
        outgoing = server.dispatch(clients)
        for number, client in enumerate(outgoing):
            state = outgoing[client]
            began, worked = time.perf_counter(), time.process_time()
            train(state, 1_000_003 * server.round + number)
            self.seconds += time.perf_counter() - began
            self.busy += time.process_time() - worked
            yield client, state


def one(model_name: str, clients: int, classes: int, rounds: int) -> dict[str, Any]:
    """Some marked rounds for so many clients, in this process."""
    model = build(model_name, input_shape=SHAPES[model_name], classes=classes, seed=0)
    names = [f"client-{i:04d}" for i in range(clients)]
    keyring = Keyring.generate(clients=names, classes=classes, input_shape=SHAPES[model_name], secret=b"benchmark" * 4)
    server = TraMark(model, keyring, warmup_rounds=1)
    del model
    seconds = []
    for _ in range(1 + rounds):
        playing = Clients()
        began = time.perf_counter()
        server.collect(playing.updates(server))
        seconds.append(time.perf_counter() - began - playing.seconds)
    size, mark = server.fleet.layout.size, server.fleet.marks.shape[1]
    median = statistics.median(seconds[1:])
    return {
        "model": model_name,
        "clients": clients,
        "seconds": round(median, 3),
        "seconds_per_client": round(median / clients, 5),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "limit_mib": round((5 * 4 * size + 1.2 * 4 * clients * mark) / 2**20 + 512),
        "weights": size,
        "mark": mark,
    }


def few_of_many(model_name: str, registered: int, sampled: int, classes: int, rounds: int) -> dict[str, Any]:
    """Some marked rounds with a vault of so many clients, of which few are sampled, and a trace, in this process."""
    names = [f"client-{i:07d}" for i in range(registered)]
    shape, seconds, busy, draw = SHAPES[model_name], [], [], random.Random(0)
    # As many questions for all sizes: a round's time depends on them.
    keyring = Keyring.generate(
        clients=names, classes=classes, input_shape=shape, normalise=(0.5, 0.5), questions=48, common=0
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vault"
        began = time.perf_counter()
        with Vault.create(path, keyring, key_file=make_key_file(default_key_file(path))) as vault:
            joined = time.perf_counter() - began
            server = TraMark(
                build(model_name, input_shape=shape, classes=classes, seed=0), vault=vault, warmup_rounds=1
            )
            for _ in range(1 + rounds):
                playing, began, worked = Clients(), time.perf_counter(), time.process_time()
                server.collect(playing.updates(server, draw.sample(names, sampled)))
                seconds.append(time.perf_counter() - began - playing.seconds)
                busy.append(time.process_time() - worked - playing.busy)
                print(f"round {len(busy)}: {busy[-1]:.2f} s of processor time", file=sys.stderr)
            leaked = server.client_model(names[-1])
            began = time.perf_counter()
            verdict = trace(leaked, vault)
            traced = time.perf_counter() - began
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {
        "model": model_name,
        "registered": registered,
        "sampled": sampled,
        "join_seconds": round(joined, 1),
        "first_marks_seconds": round(seconds[0], 3),
        "seconds": round(statistics.median(seconds[1:]), 3),
        "cpu_seconds": round(statistics.median(busy[1:]), 3),
        "trace_seconds": round(traced, 2),
        "traced": verdict.clients == (names[-1],),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "vault_mib": round(size / 2**20, 1),
    }


def plot_registered(rows: list[dict[str, Any]], path: str) -> None:
    """Time and memory against the number of registered clients."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    registered = [row["registered"] for row in rows]
    times = {"join_seconds": "make the vault", "seconds": "a round", "trace_seconds": "a trace"}
    for name, label in times.items():
        left.loglog(registered, [row[name] for row in rows], "o-", label=label)
    left.set(xlabel="registered clients", ylabel="seconds", title="time")
    for name, label in {"peak_mib": "server's memory", "vault_mib": "vault"}.items():
        right.semilogx(registered, [row[name] for row in rows], "o-", label=label)
    right.set(xlabel="registered clients", ylabel="MiB", title="size", ylim=0)
    left.legend()
    right.legend()
    figure.savefig(path, dpi=150)


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Time per client and memory against the number of clients."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    clients = [row["clients"] for row in rows]
    left.semilogx(clients, [1000 * row["seconds_per_client"] for row in rows], "o-")
    left.set(xlabel="clients", ylabel="milliseconds per client", title="a round's time", ylim=0)
    right.semilogx(clients, [row["peak_mib"] for row in rows], "o-", label="measured")
    right.semilogx(clients, [row["limit_mib"] for row in rows], "--", label="allowed")
    right.set(xlabel="clients", ylabel="MiB", title="peak memory", ylim=0)
    right.legend()
    for axes in (left, right):
        axes.set_xticks(clients, [str(n) for n in clients])
        axes.minorticks_off()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="cnn")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 30, 100, 300, 1000])
    parser.add_argument("--registered", type=int, nargs="+", help="clients in a vault, of which few are sampled")
    parser.add_argument("--sampled", type=int, default=100, help="how many are sent a model in a round")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="marked rounds, of which the median is taken")
    parser.add_argument("--plot", help="file for a picture")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here and options.registered:
        [registered] = options.registered
        row = few_of_many(options.model, registered, options.sampled, options.classes, options.rounds)
        print(json.dumps(row))
        return
    if options.here:
        print(json.dumps(one(options.model, options.clients[0], options.classes, options.rounds)))
        return
    rows = []
    size = "--registered" if options.registered else "--clients"
    for clients in options.registered or options.clients:
        words = ["--model", options.model, size, str(clients), "--classes", str(options.classes)]
        words += ["--sampled", str(options.sampled)]
        command = [sys.executable, __file__, "--here", "--rounds", str(options.rounds), *words]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
        if not options.json:
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))
    if options.plot:
        (plot_registered if options.registered else plot)(rows, options.plot)


if __name__ == "__main__":
    main()
