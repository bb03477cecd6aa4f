"""A grid that keeps few models in memory at a time."""

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from logging import WARNING
from typing import Any, TypeVar

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import nn

IN_FLIGHT = 2**26
"""Bytes of models in this process at a time, about, on their way to or from the SuperLink."""


_Item = TypeVar("_Item")


class Gradually(Grid):
    """A grid that sends messages, and fetches replies, a few at a time and as they are wanted."""

    def __init__(self, grid: Grid, model: nn.Module) -> None:
        self.grid = grid
        size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        self.at_a_time = max(1, min(8, IN_FLIGHT // size))

    @property
    def run(self) -> Any:
        return self.grid.run

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self.grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        waiting: list[str] = []
        for some in _groups(messages, self.at_a_time):
            waiting += [number for number in self.grid.push_messages(some) if number]
        deadline = None if timeout is None else time.monotonic() + timeout
        while waiting:
            for group in _groups(list(waiting), self.at_a_time):
                for reply in self.grid.pull_messages(group):
                    waiting.remove(reply.metadata.reply_to_message_id)
                    yield reply
            if waiting and deadline is not None and time.monotonic() > deadline:
                log(WARNING, "%s clients have not answered in time", len(waiting))
                return
            if waiting:
                time.sleep(getattr(self.grid, "pull_interval", 1.0))


def plain(grid: Grid) -> Grid:
    return grid.grid if isinstance(grid, Gradually) else grid


def _groups(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
