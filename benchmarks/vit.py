"""A server's round for a hundred clients of a ViT-B/16, and its peak memory.

As in `scale.py`, clients return what they were sent, moved a little in a few random directions: models are issued one
by one, and updates arrive one by one; the time that clients take is left out. The weights are random. Timed is the
second round; the first, at whose end the questions are chosen and the first marks made, counts for memory only.
`passes` is the time that marks take, in forward passes of all variants of all questions.

    python benchmarks/vit.py --clients 100 --json
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from round import confidence
from scale import train
from tramark import Keyring, TraMark
from tramark.lab.models import build
from tramark.marks.closed_form import ClosedForm

SHAPE = (3, 224, 224)

TOGETHER = 14
"""Images that are run at a time."""


class Clock:
    """Adds up the seconds that each part of a round takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began


def play(server: TraMark) -> dict[str, float]:
    """A round: issue everybody's model, fold in what comes back, make the marks. Gives each part's seconds."""
    clock = Clock()
    aggregation, outgoing = server.begin(), server.dispatch()
    for number, client in enumerate(outgoing):
        with clock("issue"):
            state = outgoing[client]
        train(state, 1_000_003 * server.round + number)
        with clock("aggregate"):
            aggregation.add(client, state)
        del state
    with clock("inject"):
        server.end(aggregation)
    return clock.seconds


def measure(name: str, clients: int, classes: int, pool: int, retouch: int) -> dict[str, Any]:
    """A marked round after a warm-up round, at whose end the questions are chosen."""
    names = [f"client-{i:03d}" for i in range(clients)]
    keyring = Keyring.generate(clients=names, classes=classes, input_shape=SHAPE, pool=pool, secret=b"benchmark" * 4)
    model = build(name, input_shape=SHAPE, classes=classes, seed=0)
    server = TraMark(model, keyring, warmup_rounds=1, injection=ClosedForm(retouch=retouch))
    play(server)
    seconds = play(server)
    raw = server.keyring.raw(sorted(server.keyring.in_use), "train").flatten(0, 1)
    inputs, whole = server.keyring.source.prepare(raw), server.base_model()
    began = time.perf_counter()
    with torch.no_grad():
        for piece in inputs.split(TOGETHER):
            whole(piece)
    once = time.perf_counter() - began
    peak, size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, server.fleet.layout.size
    return {
        "model": name,
        "clients": clients,
        "weights": size,
        "seconds": round(sum(seconds.values()), 2),
        **{f"seconds_{part}": round(value, 2) for part, value in seconds.items()},
        "images": len(inputs),
        "seconds_of_a_pass": round(once, 2),
        "passes": round(seconds["inject"] / once, 2),
        "peak_mib": round(peak / 1024),
        "copies_mib": round(clients * size * 4 / 2**20),
        "confidence": statistics.mean(confidence(server.client_model(c), server.keyring, c) for c in names[:3]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["vit-b16", "vit"], default="vit-b16")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--pool", type=int, default=64, help="candidates that the questions are chosen from")
    parser.add_argument("--retouch", type=int, default=0, help="steps to retouch them, each a pass there and back")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a line")
    options = parser.parse_args()
    row = measure(options.model, options.clients, options.classes, options.pool, options.retouch)
    print(json.dumps(row, indent=2) if options.json else "  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
