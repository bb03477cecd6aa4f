"""Models as Flower's records: which array is which tensor, and what a reply holds."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from torch import nn

from tramark.errors import SettingError, UpdateError
from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import State


class Arrays:
    """Turns state dicts of a model into array records and back.

    Records need not use the model's names: arrays under other names are taken in the model's order. `travels` are the
    names of the tensors that records hold; without it, initial arrays under some of the model's names say which.
    """

    def __init__(self, model: nn.Module, record: ArrayRecord, travels: Collection[str] | None = None) -> None:
        keys, names = list(record), list(model.state_dict())
        if travels is None and set(keys) < set(names):
            travels = set(keys)
        self.travels = travels
        self.names = [name for name in names if travels is None or name in travels]
        if len(keys) != len(self.names):
            what = "a model of" if travels is None else "travels, which means"
            raise SettingError(f"{len(keys)} initial arrays do not fit {what} {len(self.names)} tensors")
        self.keys: Sequence[str] = self.names if set(keys) == set(self.names) else keys

    def record(self, state: State) -> ArrayRecord:
        """A state dict as a record."""
        return ArrayRecord({key: Array(state[name]) for key, name in zip(self.keys, self.names, strict=True)})

    def state(self, record: ArrayRecord) -> State:
        """A record as a state dict. Unknown arrays keep their names, so that the server can refuse them."""
        names = dict(zip(self.keys, self.names, strict=True))
        return {names.get(key, key): torch.from_numpy(np.asarray(array.numpy())) for key, array in record.items()}

    def personal(self, fleet: Fleet, client: str, base: ArrayRecord) -> ArrayRecord:
        """A client's own model; tensors that all clients share are taken from the base's record."""
        own = {
            name: Array(fleet.sent(client, name).to(fleet.layout.slots[name].dtype))
            for name in self.names
            if name not in fleet.shared
        }
        return ArrayRecord({k: own.get(name, base[k]) for k, name in zip(self.keys, self.names, strict=True)})

    def returned(self, client: str, reply: Message) -> State:
        """The model that a client returned; `UpdateError` if the reply has none that can be read."""
        records = reply.content.array_records
        if len(records) != 1:
            raise UpdateError(client, f"{len(records)} array records instead of one")
        try:
            return self.state(next(iter(records.values())))
        except Exception as error:  # whatever a node may send that is not an array
            raise UpdateError(client, f"its arrays cannot be read ({type(error).__name__})") from error


def weight_of(client: str, reply: Message, strategy: Strategy) -> float:
    """A client's weight in the mean, under the metric that the strategy weights by."""
    key = weight_key(strategy)
    for record in reply.content.metric_records.values():
        if isinstance(weight := record.get(key), int | float):
            try:
                return float(weight)
            except OverflowError:
                raise UpdateError(client, f"its weight, {key!r}, is no number that can be used") from None
    raise UpdateError(client, f"it does not say its weight, {key!r}")


def weight_key(strategy: Strategy) -> str:
    """The metric that a strategy weights by."""
    return _setting(strategy, "weighted_by_key", "num-examples")


def consistent(replies: Mapping[str, Message]) -> dict[str, Message]:
    """The replies whose records and metrics are named as in most of them; strategies raise an error at any other.

    By client. One client that names its metrics differently must not stop everybody's training.
    """
    forms = {client: _form(reply) for client, reply in replies.items()}
    if not forms:
        return {}
    usual = Counter(forms.values()).most_common(1)[0][0]
    return {client: reply for client, reply in replies.items() if forms[client] == usual}


def _form(reply: Message) -> tuple[object, ...]:
    """How a reply's arrays and metrics are named, and how long the metrics that are lists are."""
    metrics = [
        (name, sorted((key, len(value) if isinstance(value, list) else -1) for key, value in record.items()))
        for name, record in reply.content.metric_records.items()
    ]
    return tuple(reply.content.array_records), repr(sorted(metrics))


def with_weight(content: RecordDict, key: str, weight: float) -> RecordDict:
    """A reply's records with another weight."""

    def changed(record: object) -> object:
        if not isinstance(record, MetricRecord) or key not in record:
            return record
        whole = isinstance(record[key], int)
        return MetricRecord({**record, key: max(1, int(weight)) if whole else weight})

    return RecordDict({name: changed(record) for name, record in content.items()})  # type: ignore[misc]


def with_arrays(content: RecordDict, arrays: ArrayRecord) -> RecordDict:
    """A reply's records with other arrays."""
    return RecordDict({name: arrays if isinstance(r, ArrayRecord) else r for name, r in content.items()})


def _setting(strategy: Strategy, name: str, default: str) -> str:
    """A setting of a strategy, or of the one that it wraps."""
    while not hasattr(strategy, name) and hasattr(strategy, "strategy"):
        strategy = strategy.strategy
    return str(getattr(strategy, name, default))
