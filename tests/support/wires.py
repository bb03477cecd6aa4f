"""A grid of Flower's own message types whose nodes answer in this process, and strategies on it."""

import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
pytest.importorskip("flwr", reason="Flower is not installed: pip install tramark[flower]")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity

from tramark import Keyring
from tramark.integrations.flower import TraMarkStrategy
from tramark.vault.lock import default_key_file, make_key_file
from tramark.vault.store import Vault

SITES = [f"site-{i}" for i in range(5)]


def net(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    second = nn.BatchNorm1d(64) if norm else nn.Identity()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), second, nn.ReLU(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10)
    )


def trained(state: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """A few steps on a node's own data: what an ordinary client does."""
    model = net(norm="2.running_var" in state)
    model.load_state_dict(state)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(32, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (32,), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return model.state_dict()


class Info:
    """What a SuperLink tells about a node."""

    def __init__(self, node_id: int, name: str, public_key: bytes) -> None:
        self.node_id, self.name, self.public_key, self.registered_at = node_id, name, public_key, ""


Answer = Callable[["Site", Message], Message | None]


class Site:
    """A node: its name and key, what it was sent, and how it answers."""

    def __init__(self, number: int, name: str, key: bytes | None = None, answer: Answer | None = None) -> None:
        self.number, self.info = number, Info(1000 + number, name, key or name.encode())
        self.seen: list[RecordDict] = []
        self.rounds: list[int] = []
        self.answer = answer or honest


def reply(site: Site, message: Message, state: dict[str, Tensor], **metrics: float) -> Message:
    records = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 10 + site.number, **metrics})}
    return Message(RecordDict(records), reply_to=message)  # type: ignore[arg-type]


def honest(site: Site, message: Message) -> Message:
    site.seen.append(message.content)
    # The config is one object, changed from round to round.
    site.rounds.append(message.content["config"]["server-round"])  # type: ignore[arg-type]
    state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
    if message.metadata.message_type == "evaluate":
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "loss": 1.0})}), reply_to=message)
    return reply(site, message, trained(state, site.number), loss=float(site.number))


class Wire(Grid):
    """A grid whose nodes answer at once, in this process, and in any order, unless told."""

    def __init__(self, sites: list[Site], *, in_order: bool = False) -> None:
        self.in_order = in_order
        self.sites, self.waiting, self.pull_interval = sites, dict[str, Message](), 0.0
        self.most = 0

    run = None  # type: ignore[assignment]

    def set_run(self, run: Any) -> None: ...

    def create_message(self, *args: Any, **options: Any) -> Message:
        return Message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return [site.info.node_id for site in self.sites]

    def get_nodes(self) -> Iterable[Any]:
        return [site.info for site in self.sites]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        messages = list(messages)
        self.most = max(self.most, len(messages))
        for message in messages:
            ids.append(str(uuid4()))
            message.metadata.__dict__["_message_id"] = ids[-1]
            site = next(site for site in self.sites if site.info.node_id == message.metadata.dst_node_id)
            answered = site.answer(site, message)
            if answered is not None:
                self.waiting[ids[-1]] = answered
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [self.waiting.pop(number) for number in list(message_ids) if number in self.waiting]
        if not self.in_order:
            random.shuffle(ready)
        return ready

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


@pytest.fixture(autouse=True)
def in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages want to know whose process they are made in."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def sites() -> list[Site]:
    return [Site(number, name) for number, name in enumerate(SITES)]


def all_of_them(kind: type[FedAvg] = FedAvg, **options: Any) -> FedAvg:
    return kind(min_available_nodes=len(SITES), **options)


def small(path: Path, clients: list[str] | None = None) -> Path:
    """A vault with a small pool of questions, quicker to commit to."""
    names = clients or SITES
    keyring = Keyring.generate(
        clients=names, classes=10, input_shape=(1, 8, 8), questions=12, pool=48, secret=b"s" * 32
    )
    make_key_file(default_key_file(path))
    Vault.create(path, keyring).close()
    return path


def wrapped(inner: Strategy, vault: Vault | Path, **more: Any) -> TraMarkStrategy:
    options: dict[str, Any] = {"warmup_rounds": 2, "questions": 12, "input_shape": (1, 8, 8), "model": net()} | more
    return TraMarkStrategy(inner, vault=vault, **options)


def start(strategy: Strategy, wire: Grid, rounds: int = 4, *, norm: bool = False) -> dict[str, Tensor]:
    result = strategy.start(wire, ArrayRecord(net(norm=norm).state_dict()), num_rounds=rounds, timeout=1)
    assert result.arrays is not None
    return result.arrays.to_torch_state_dict()
