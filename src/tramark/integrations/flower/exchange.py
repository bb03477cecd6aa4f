"""The messages of one round: each client's own model out, and updates with the marks taken off back in."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from tramark.errors import SettingError, UpdateError
from tramark.fleet.aggregation import Aggregation
from tramark.integrations.flower.records import Arrays, consistent, weight_key, weight_of, with_arrays, with_weight
from tramark.server import TraMark

LINEAR: tuple[type[Strategy], ...] = (FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad, FedYogi)
"""Strategies that use nothing of the replies' arrays but their weighted mean."""


FEW = 5
"""Replies of the first round whose weights tell which are usual."""


class Exchange:
    """What was sent to whom in a round, and what came back.

    `linear` says that the strategy uses nothing but the weighted mean of the replies: then their arrays are dropped as
    soon as they are folded in.
    """

    def __init__(self, server: TraMark, arrays: Arrays, strategy: Strategy, *, linear: bool) -> None:
        self._server, self._arrays, self._strategy, self._linear = server, arrays, strategy, linear
        # Flower sets a message's id, in its metadata, when it is really sent.
        self._sent: list[tuple[Any, str]] = []
        self.refused: dict[str, str] = {}
        """Whose updates could not be used, and why."""

    def send(
        self, messages: Sequence[Message], names: Mapping[int, str], arrays: ArrayRecord, base: ArrayRecord
    ) -> Iterator[Message]:
        """The messages with `arrays`, the base that the strategy sends, replaced by each client's own model."""
        for message in messages:
            client = names[message.metadata.dst_node_id]
            if not any(record is arrays for record in message.content.values()):
                name = type(self._strategy).__name__
                raise SettingError(f"{name} does not send the arrays that it was given: they cannot be marked")
            own = self._arrays.personal(self._server.fleet, client, base)
            # A copy, which is freed once it is sent: the messages themselves are kept until the round ends.
            outgoing = copy.copy(message)
            outgoing.content = RecordDict({k: own if v is arrays else v for k, v in message.content.items()})
            self._sent.append((message.metadata, client))
            yield outgoing

    def take(self, replies: Iterable[Message], aggregation: Aggregation) -> tuple[dict[str, Message], list[Message]]:
        """Fold replies in one by one; returns those that can be used, by client, and those of failed clients."""
        usable: dict[str, Message] = {}
        failed: list[Message] = []
        clients: dict[str, str] = {}
        key = weight_key(self._strategy)
        for reply in self._weighed(replies):
            # The first reply is asked for once all messages are sent.
            clients = clients or {sent.message_id: client for sent, client in self._sent}
            # A reply's sender is not always who it says, but what it replies to is known.
            client = clients.get(reply.metadata.reply_to_message_id)
            if client is None:
                log(WARNING, "a reply to a message that was not sent in this round is ignored")
                continue
            if reply.has_error():
                log(WARNING, "client %r failed: %s", client, reply.error.reason)
                failed.append(reply)
                continue
            try:
                returned = self._arrays.returned(client, reply)
                weight = weight_of(client, reply, self._strategy)
                aggregation.add(client, returned, weight)
            except UpdateError as error:
                log(WARNING, "%s", error)
                self.refused[client] = error.reason
                continue
            plain = ArrayRecord()
            if not self._linear:
                plain = self._arrays.record(self._server.fleet.unmarked(client, returned))
            reply.content = with_arrays(reply.content, plain)
            if aggregation.taken[client] < weight:
                log(
                    WARNING, "client %r declares the weight %g and counts %g", client, weight, aggregation.taken[client]
                )
                reply.content = with_weight(reply.content, key, aggregation.taken[client])
            usable[client] = reply
        alike = consistent(usable)
        for client in usable.keys() - alike.keys():
            log(WARNING, "client %r names its records or metrics as nobody else does: its metrics are left out", client)
        return alike, failed

    def _weighed(self, replies: Iterable[Message]) -> Iterator[Message]:
        """The replies. In the first round the first few are looked at together, to know which weights are usual."""
        replies, usual = iter(replies), self._server.usual
        if not usual.knows_weights:
            some = list(islice(replies, FEW))
            usual.hear(filter(None, map(self._declared, some)))
            yield from some
        yield from replies

    def _declared(self, reply: Message) -> float | None:
        try:
            return None if reply.has_error() else weight_of("", reply, self._strategy)
        except UpdateError:
            return None
