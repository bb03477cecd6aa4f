"""What the Flower strategy costs a server: time beside the inner strategy alone, and memory.

The SuperLink is played by a grid that keeps messages on the disk, as a SuperLink keeps them in another process. Clients
return what they were sent with a little noise. Plain and wrapped take turns, each in a process of its own, so that its
peak memory can be read; the first marked round is left out of the times, since it makes the vault and chooses the
questions.

    python benchmarks/flower.py --model cnn --clients 10 --repeats 5 --json
    python benchmarks/flower.py --model alexnet --clients 50 --repeats 1
"""

import argparse
import json
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file, save_file

from tramark.integrations.flower import TraMarkStrategy
from tramark.lab.models import build

SHAPES = {"cnn": (1, 28, 28), "small-cnn": (3, 32, 32), "alexnet": (3, 32, 32)}


class Node:
    """What a SuperLink tells about a node."""

    def __init__(self, number: int) -> None:
        self.node_id, self.name, self.registered_at = 1000 + number, f"site-{number:04d}", ""
        self.public_key = self.name.encode()


class Spool(Grid):
    """A grid that keeps messages on the disk and whose nodes add a little noise to what they were sent."""

    def __init__(self, nodes: int, place: Path) -> None:
        self.nodes, self.place, self.pull_interval = [Node(i) for i in range(nodes)], place, 0.0
        self.sent: dict[str, Message] = {}

    run = None  # type: ignore[assignment]

    def set_run(self, run: Any) -> None: ...

    def create_message(self, *args: Any, **options: Any) -> Message:
        return Message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.nodes]

    def get_nodes(self) -> Iterable[Any]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            number = str(uuid4())
            message.metadata.__dict__["_message_id"] = number
            arrays = next(iter(message.content.array_records.values()))
            save_file(dict(arrays.to_torch_state_dict()), self.place / number)
            self.sent[number] = Message(RecordDict(), metadata=message.metadata)  # type: ignore[call-overload]
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._reply(number) for number in list(message_ids) if number in self.sent]

    def _reply(self, number: str) -> Message:
        state = load_file(self.place / number)
        (self.place / number).unlink()
        for tensor in state.values():
            if tensor.is_floating_point():
                tensor += 1e-3 * torch.randn(tensor.shape[:1] + (1,) * (tensor.dim() - 1)) * tensor
        records = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(records), reply_to=self.sent.pop(number))  # type: ignore[arg-type]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(list(self.push_messages(messages)))


def one(arguments: argparse.Namespace, kind: str) -> dict[str, float]:
    """Some rounds of one kind in this process: seconds a round, and the peak of its memory in MiB."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    shape = SHAPES[arguments.model]
    model = build(arguments.model, input_shape=shape, classes=10, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        grid = Spool(arguments.clients, Path(folder))
        inner = FedAvg(fraction_evaluate=0.0)
        ends: list[float] = []

        def ended(*_: Any) -> None:
            ends.append(time.perf_counter())

        strategy = (
            inner
            if kind == "plain"
            else TraMarkStrategy(inner, model=model, vault=Path(folder) / "vault", input_shape=shape, warmup_rounds=1)
        )
        arrays = ArrayRecord(model.state_dict())
        strategy.start(grid, arrays, num_rounds=1 + arguments.rounds, evaluate_fn=ended)
    seconds = statistics.median(later - earlier for earlier, later in pairwise(ends[1:]))
    return {"seconds": seconds, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="cnn")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="Marked rounds in each repeat.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="Print the figures as JSON.")
    parser.add_argument("--kind", choices=["plain", "wrapped"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        print(json.dumps(one(arguments, arguments.kind)))
        return
    runs: dict[str, list[dict[str, float]]] = {"plain": [], "wrapped": []}
    for _ in range(arguments.repeats):
        for kind, found in runs.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--kind", kind]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    figures = {
        f"{kind}_{name}": round(statistics.median(run[name] for run in found), 3)
        for kind, found in runs.items()
        for name in ("seconds", "peak_mib")
    }
    row = {"model": arguments.model, "clients": arguments.clients, **figures}
    row["ratio"] = round(row["wrapped_seconds"] / row["plain_seconds"], 2)
    if arguments.json:
        print(json.dumps(row))
        return
    for name, value in row.items():
        print(f"{name:18} {value}")


if __name__ == "__main__":
    main()
