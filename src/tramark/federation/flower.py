"""tramark on Flower: a strategy that holds another one, and gives every node a model of its own.

    strategy = FedAvg(fraction_train=0.5)
    strategy = TraMarkStrategy(strategy, model=Net(), vault="vault", input_shape=(3, 32, 32))

The inner strategy goes on as if nothing had happened. It samples nodes and sends the base model; each message is given
its own client's model instead. What comes back is handed to it with the client's own mark taken off, base + (returned −
sent), so that a mean, a median or an adaptive optimiser keeps its meaning. What it makes of that is the next base. A
finished round is in the vault before anything of the next is sent, and an app that is started again with the same
vault goes on after the last finished round.

Messages are sent and replies fetched a few at a time. For strategies that use nothing but the weighted mean of what
came back, that mean is kept instead of the replies, so that the server never holds many models at once.
"""

import copy
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Result,
    Strategy,
)
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from torch import Tensor, nn

from tramark.fleet import Aggregation, UpdateError
from tramark.inject import Injection
from tramark.keys import Keyring
from tramark.server import TraMark
from tramark.triggers import Triggers
from tramark.vault import NoKey, Vault, default_key_file, find_key, make_key_file
from tramark.weights import State

IN_FLIGHT = 2**26
"""About so many bytes of models are in this process at once, on their way to or from the SuperLink."""

NODES = "flower-nodes"
"""The vault's note of which public key each client's name belongs to."""

NAME = "tramark-name"
"""Where a node that is not authenticated declares its name, in the ConfigRecord of its answer to a query."""

_Item = TypeVar("_Item")

# These use nothing of the replies' arrays but their weighted mean.
_LINEAR: tuple[type[Strategy], ...] = (FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad, FedYogi)


class TraMarkStrategy(Strategy):
    """A Flower strategy whose every node gets its own marked model.

    Parameters
    ----------
    strategy : the inner strategy, which samples nodes and aggregates.
    model : a model of the architecture that is trained. It is copied, and its device is used for making marks.
    vault : a `Vault`, or where to open one or make it. An existing one is gone on with.
    input_shape, triggers, classes, questions : what a new vault's keyring is made for; see `Keyring.generate`. Without
        `classes` it is the number of outputs of the model's last linear layer.
    ratio, warmup_rounds, preset, injection : as for `TraMark`.
    identify : tells the clients' names, {node id: name}, given the grid and the node ids; `identify_nodes`, unless
        told.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        model: nn.Module,
        vault: Vault | str | Path,
        input_shape: tuple[int, ...] | None = None,
        triggers: Triggers | None = None,
        classes: int | None = None,
        questions: int | None = None,
        ratio: float = 0.01,
        warmup_rounds: int = 25,
        preset: str = "default",
        injection: Injection | None = None,
        identify: "Callable[[Grid, Sequence[int]], Mapping[int, str]] | None" = None,
    ) -> None:
        self.strategy = strategy
        self.server: TraMark | None = None
        self._model = copy.deepcopy(model)
        self._place = vault
        self._new = {
            "input_shape": input_shape,
            "triggers": triggers,
            "classes": classes or _outputs(model),
            "questions": questions,
        }
        self._options = {"ratio": ratio, "warmup_rounds": warmup_rounds, "preset": preset, "injection": injection}
        self._nodes = _Nodes(identify or identify_nodes)
        self._at_first = _memory(strategy)
        self._record: ArrayRecord | None = None
        self._keys: list[str] = []
        self._sent: list[tuple[Any, str]] = []
        self._done = 0

    def summary(self) -> None:
        """Log how the federation is set up, as a tree."""
        log(INFO, "\t├──> TraMark:")
        log(INFO, "\t│\t├── Vault: %s", self._place.path if isinstance(self._place, Vault) else self._place)
        log(INFO, "\t│\t├── Warm-up: %s rounds", self._options["warmup_rounds"])
        log(INFO, "\t│\t├── Marks: %s", self._options["injection"] or f"preset {self._options['preset']}")
        if self.server is not None:
            log(INFO, "\t│\t├── Clients: %s, going on after round %s", len(self.server.fleet.clients), self._done)
        log(INFO, "\t│\t└── Memory: %s", "the mean of the replies" if self._linear else "all replies of a round")
        log(INFO, "\t└──> %s:", type(self.strategy).__name__)
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train for `num_rounds` in all, of which those that the vault knows are done."""
        arrays = self.resume(initial_arrays)
        done = self._done
        if done:
            log(INFO, "the vault holds %s finished rounds: going on with round %s", done, done + 1)

        def evaluate(round: int, record: ArrayRecord) -> MetricRecord | None:
            return evaluate_fn(round + done, record) if evaluate_fn else None

        result = super().start(
            _Gradually(grid, self._model),
            arrays,
            num_rounds=max(0, num_rounds - done),
            timeout=timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=evaluate if evaluate_fn else None,
        )
        for name, rounds in vars(result).items():
            if name.endswith(("_clientapp", "_serverapp")):
                setattr(result, name, {number + done: metrics for number, metrics in rounds.items()})
        if num_rounds <= done:
            result.arrays = arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages, each with its own client's model."""
        messages = self.strategy.configure_train(server_round + self._done, arrays, config, grid)
        return self._personal(messages, arrays, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages, each with its own client's model."""
        messages = self.strategy.configure_evaluate(server_round + self._done, arrays, config, grid)
        return self._personal(messages, arrays, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take everyone's mark off, let the inner strategy aggregate, and make the marks for its result."""
        aggregation, usable, failed = self._take(replies)
        server = self._ready
        if self._linear and usable:
            mean = self._to_record(aggregation.mean())
            for reply in usable.values():
                reply.content = _with_arrays(reply.content, mean)
        # In the clients' order, whatever the order in which they answered.
        inner = [usable[client] for client in server.fleet.clients if client in usable]
        arrays, metrics = self.strategy.aggregate_train(server_round + self._done, [*inner, *failed])
        if arrays is None:
            aggregation, base = server.begin(), None
        else:
            base = self._to_state(arrays)
            # A mean of copies of the mean differs from it in the last bit, by which two runs would drift apart.
            if self._linear and aggregation.gives(base):
                base = None
        report = server.end(aggregation, base)
        marked = "marked" if server.marked else "not marked yet"
        log(INFO, "round %s: models of %s clients are %s", report.round, len(server.fleet.clients), marked)
        self._record = None
        return (None if arrays is None else self._base()), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What the inner strategy makes of the evaluations."""
        return self.strategy.aggregate_evaluate(server_round + self._done, list(replies))

    def resume(self, initial: ArrayRecord) -> ArrayRecord:
        """Open the vault, if there is one, and bring the server to where it was; gives the arrays to begin with.

        `start` does it. A strategy around this one has a start of its own: it is to be given these arrays, and as many
        rounds fewer as are `done`.
        """
        if self.server is None:
            if isinstance(self._place, str | Path):
                if not Path(self._place).exists():
                    return initial
                self._place = Vault.open(self._place)
            self._begin(initial)
        server = self._ready
        if not server.resume():
            return initial
        _remember(self.strategy, (self.vault.saved() or {}).get("strategy", {}))
        self._done = server.round
        self._record = None
        return self._base()

    @property
    def done(self) -> int:
        """How many rounds the vault held when it was resumed from."""
        return self._done

    @property
    def vault(self) -> Vault:
        """The vault, once it is open."""
        if not isinstance(self._place, Vault):
            raise ValueError("the vault is made when the first round begins, for then the clients are known")
        return self._place

    @property
    def _ready(self) -> TraMark:
        if self.server is None:
            raise ValueError("nothing was sent yet: there is nothing to aggregate")
        return self.server

    @property
    def _linear(self) -> bool:
        return type(self.strategy) in _LINEAR

    def _personal(self, messages: Iterable[Message], arrays: ArrayRecord, grid: Grid) -> Iterable[Message]:
        """Messages whose model is replaced by their client's own."""
        messages = list(messages)
        self._sent = []
        if not messages:
            return []
        # Everybody gets a key, whether sampled in this round or not.
        names = self._nodes.names(grid, [*grid.get_node_ids(), *(message.metadata.dst_node_id for message in messages)])
        self._serve(arrays, names.values())
        # In an order that does not depend on how nodes were sampled.
        allowed = sorted(
            (message for message in messages if message.metadata.dst_node_id in names),
            key=lambda message: names[message.metadata.dst_node_id],
        )
        server = self._ready
        server.dispatch([names[message.metadata.dst_node_id] for message in allowed])
        shared, slots, base = server.fleet.shared, server.fleet.layout.slots, self._base()

        def personal() -> Iterator[Message]:
            for message in allowed:
                client = names[message.metadata.dst_node_id]
                own = ArrayRecord(
                    {
                        key: base[key]
                        if name in shared
                        else Array(server.fleet.sent(client, name).to(slots[name].dtype))
                        for key, name in zip(self._keys, server.fleet.layout.order, strict=True)
                    }
                )
                if not any(record is arrays for record in message.content.values()):
                    name = type(self.strategy).__name__
                    raise ValueError(f"{name} does not send the arrays that it was given: they cannot be marked")
                content = RecordDict({k: own if v is arrays else v for k, v in message.content.items()})
                self._sent.append((message.metadata, client))
                # A copy, which goes when it has been sent: the messages themselves are all kept until the round ends.
                outgoing = copy.copy(message)
                outgoing.content = content
                yield outgoing

        # A grid of Flower's own goes through the messages twice.
        return personal() if isinstance(grid, _Gradually) else list(personal())

    def _take(self, replies: Iterable[Message]) -> tuple[Aggregation, dict[str, Message], list[Message]]:
        """Fold replies in one by one; gives those that can be used, by client, and those of failed clients."""
        aggregation = self._ready.begin()
        usable: dict[str, Message] = {}
        failed: list[Message] = []
        for reply in replies:
            # A reply's sender is not always who it says, but what it replies to is known.
            client = next((c for sent, c in self._sent if sent.message_id == reply.metadata.reply_to_message_id), None)
            if client is None:
                log(WARNING, "a reply to a message that was not sent in this round is ignored")
                continue
            if reply.has_error():
                log(WARNING, "client %r failed: %s", client, reply.error.reason)
                failed.append(reply)
                continue
            try:
                returned = self._returned(client, reply.content)
                aggregation.add(client, returned, self._weight(client, reply))
            except UpdateError as error:
                log(WARNING, "%s", error)
                continue
            plain = None if self._linear else self._to_record(self._ready.fleet.unmarked(client, returned))
            reply.content = _with_arrays(reply.content, plain or ArrayRecord())
            usable[client] = reply
        return aggregation, usable, failed

    def _returned(self, client: str, content: RecordDict) -> State:
        if len(content.array_records) != 1:
            raise UpdateError(client, f"{len(content.array_records)} array records instead of one")
        try:
            return self._to_state(next(iter(content.array_records.values())))
        except Exception as error:  # whatever a node may send that is not an array
            raise UpdateError(client, f"its arrays cannot be read ({type(error).__name__})") from error

    def _weight(self, client: str, reply: Message) -> float:
        key = _setting(self.strategy, "weighted_by_key", "num-examples")
        for record in reply.content.metric_records.values():
            if isinstance(weight := record.get(key), int | float):
                return float(weight)
        raise UpdateError(client, f"it does not say its weight, {key!r}")

    def _serve(self, arrays: ArrayRecord, clients: Iterable[str]) -> None:
        """Have a server that knows these clients and has these arrays for a base."""
        clients = sorted(set(clients))
        if self.server is None:
            if not isinstance(self._place, Vault):
                self._place = self._make_vault(Path(self._place), clients)
            if self._place.saved() is not None:
                raise ValueError(
                    "the vault holds a training already: a strategy around this one must start with what resume() gives"
                )
            self._begin(arrays)
        server = self._ready
        if new := [client for client in clients if client not in server.fleet.clients]:
            log(INFO, "new clients: %s", ", ".join(new))
            server.join(*new)
        if self._record is not None and arrays is not self._record:
            # A strategy around this one, such as differential privacy, has changed the base.
            server.rebase(self._to_state(arrays))
            self._record = arrays

    def _begin(self, arrays: ArrayRecord) -> None:
        self._keys = list(arrays)
        model_state = self._model.state_dict()
        if set(self._keys) == set(model_state):
            self._keys = list(model_state)
        elif len(self._keys) != len(model_state):
            raise ValueError(f"{len(self._keys)} arrays to begin with do not fit a model of {len(model_state)} tensors")
        self._model.load_state_dict(self._to_state(arrays))
        self.server = TraMark(self._model, vault=_Keeper(self.vault, self), **self._options)  # type: ignore[arg-type]
        self._record = arrays
        self._nodes.begin(self.vault)

    def _make_vault(self, path: Path, clients: Sequence[str]) -> Vault:
        if path.exists():
            return Vault.open(path)
        keyring = Keyring.generate(clients=clients, **self._new)  # type: ignore[arg-type]
        try:
            key = find_key(path)
        except NoKey:
            path.parent.mkdir(parents=True, exist_ok=True)
            make_key_file(default_key_file(path))
            key = find_key(path)
            log(WARNING, "no passphrase given: the vault's key goes to %s", default_key_file(path))
        return Vault.create(path, keyring, passphrase=key.passphrase, key_file=key.key_file)

    def _base(self) -> ArrayRecord:
        """The unmarked base, made once a round."""
        if self._record is None:
            self._record = self._to_record(self._ready.fleet.state())
        return self._record

    def _to_record(self, state: State) -> ArrayRecord:
        order = self._ready.fleet.layout.order
        return ArrayRecord({key: Array(state[name]) for key, name in zip(self._keys, order, strict=True)})

    def _to_state(self, record: ArrayRecord) -> State:
        names = dict(zip(self._keys, self._model.state_dict(), strict=True))
        return {names.get(key, key): torch.from_numpy(np.asarray(array.numpy())) for key, array in record.items()}


def identify_nodes(grid: Grid, nodes: Sequence[int]) -> dict[int, str]:
    """The nodes' durable names.

    In a simulation a node is its partition. On a SuperLink with SuperNode authentication it has the name under which
    its public key was registered. Without authentication it is asked by a query message, which its ClientApp answers
    with a ConfigRecord that holds `tramark-name`; a name that anybody can claim proves nothing, so this warns.
    """
    known = {info.node_id: info for info in grid.get_nodes()}
    if isinstance(_plain(grid), InMemoryGrid):
        # The engine registers its nodes in the order of their partitions.
        order = sorted(known, key=lambda node: known[node].registered_at)
        width = len(str(len(order) - 1))
        return {node: f"partition-{number:0{width}d}" for number, node in enumerate(order) if node in nodes}
    if all(known[node].name for node in nodes if node in known):
        return {node: known[node].name for node in nodes if node in known}
    log(
        WARNING,
        "SuperNode authentication is off: nodes say themselves who they are. A mark accuses a name, and here anybody "
        "could have taken it; see --enable-supernode-auth.",
    )
    return _ask_names(grid, nodes)


def _ask_names(grid: Grid, nodes: Sequence[int]) -> dict[int, str]:
    queries = {node: Message(RecordDict(), node, MessageType.QUERY) for node in nodes}
    replies = list(grid.send_and_receive(list(queries.values()), timeout=120))
    asked = {query.metadata.message_id: node for node, query in queries.items()}
    names = {}
    # In the nodes' order, whatever the order in which they answered: the first to claim a name gets it.
    by_node = {asked[reply.metadata.reply_to_message_id]: reply for reply in replies if not reply.has_error()}
    for node in (node for node in nodes if node in by_node):
        for record in by_node[node].content.config_records.values():
            if name := record.get(NAME):
                names[node] = str(name)
    if missing := [node for node in nodes if node not in names]:
        raise ValueError(
            f"{len(missing)} nodes have no name to mark their models by: turn SuperNode authentication on, let the "
            f"ClientApp answer queries with a ConfigRecord that holds {NAME!r}, or pass identify=…"
        )
    return names


class _Nodes:
    """Who is who, and who claims to be somebody else."""

    def __init__(self, identify: Callable[[Grid, Sequence[int]], Mapping[int, str]]) -> None:
        self._identify = identify
        self._names: dict[int, str] = {}
        self._keys: dict[str, str] = {}
        self._vault: Vault | None = None

    def begin(self, vault: Vault) -> None:
        """Take up what the vault knows of names and keys, and write down what was learnt before it was open."""
        self._vault = vault
        if NODES in vault.names:
            known: dict[str, str] = json.loads(vault.get(NODES))
            self._keys = known | {name: key for name, key in self._keys.items() if name not in known}
        self._write()

    def names(self, grid: Grid, nodes: Sequence[int]) -> dict[int, str]:
        """The names of the nodes that may be sent a model."""
        if unknown := [node for node in nodes if node not in self._names]:
            self._admit(grid, self._identify(grid, unknown))
        return {node: self._names[node] for node in nodes if node in self._names}

    def _admit(self, grid: Grid, claims: Mapping[int, str]) -> None:
        keys = {info.node_id: info.public_key.hex() for info in grid.get_nodes()}
        durable = not isinstance(_plain(grid), InMemoryGrid) and any(info.name for info in grid.get_nodes())
        for node, name in claims.items():
            holder = next((other for other, taken in self._names.items() if taken == name), None)
            gone = holder is not None and holder not in keys
            if holder is not None and not gone:
                log(WARNING, "node %s claims the name %r, which another node has: it gets no model", node, name)
            elif durable and self._keys.get(name, keys.get(node)) != keys.get(node):
                log(WARNING, "node %s claims the name %r with another public key: it gets no model", node, name)
            else:
                if gone and holder is not None:
                    del self._names[holder]
                self._names[node] = name
                if durable:
                    self._keys[name] = keys[node]
        self._write()

    def _write(self) -> None:
        if self._vault is None or not self._keys:
            return
        data = json.dumps(self._keys, sort_keys=True).encode()
        if NODES not in self._vault.names or self._vault.get(NODES) != data:
            self._vault.put(NODES, data)


class _Keeper:
    """The vault as the server sees it: with the inner strategy's memory in what is saved."""

    def __init__(self, vault: Vault, outer: TraMarkStrategy) -> None:
        self._vault, self._outer = vault, outer
        self.issue, self.saved = vault.issue, vault.saved

    @property
    def keyring(self) -> Keyring:
        return self._vault.keyring

    def save(self, keyring: Keyring, state: Mapping[str, Any]) -> None:
        memory = _memory(self._outer.strategy, unlike=self._outer._at_first)
        self._vault.save(keyring, {**state, "strategy": memory})


class _Gradually(Grid):
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


def _plain(grid: Grid) -> Grid:
    return grid.grid if isinstance(grid, _Gradually) else grid


def _groups(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some


def _with_arrays(content: RecordDict, arrays: ArrayRecord) -> RecordDict:
    """A reply's records with other arrays."""
    return RecordDict({name: arrays if isinstance(r, ArrayRecord) else r for name, r in content.items()})


def _setting(strategy: Strategy, name: str, default: str) -> str:
    """A setting of a strategy, or of the one that it wraps."""
    while not hasattr(strategy, name) and hasattr(strategy, "strategy"):
        strategy = strategy.strategy
    return str(getattr(strategy, name, default))


def _outputs(model: nn.Module) -> int:
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"{type(model).__name__} has no linear layer: say how many labels it has by classes=…")
    return linear[-1].out_features


def _memory(strategy: Strategy, *, unlike: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """What a strategy remembers from round to round: its arrays, and numbers that are not what they were at first."""
    found: dict[str, Tensor] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            found |= {f"{name}.{rest}": tensor for rest, tensor in _memory(value).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{name}="] = torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, ArrayRecord):
            found |= _numbered(f"{name}:record", {key: array.numpy() for key, array in value.items()})
        elif isinstance(value, dict) and value and all(isinstance(item, np.ndarray) for item in value.values()):
            found |= _numbered(f"{name}:dict", value)
        elif isinstance(value, list) and value and all(isinstance(item, np.ndarray) for item in value):
            found |= _numbered(f"{name}:list", {str(i): item for i, item in enumerate(value)})
    unchanged = {n for n, t in (unlike or {}).items() if n.endswith("=") and torch.equal(t, found.get(n, t))}
    return {name: tensor for name, tensor in found.items() if name not in unchanged}


def _numbered(name: str, arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays as tensors under names that keep their order."""
    items = enumerate(arrays.items())
    return {f"{name}/{i:06d}/{key}": torch.from_numpy(np.array(array)) for i, (key, array) in items}


def _remember(strategy: Strategy, memory: Mapping[str, Tensor]) -> None:
    """Give a strategy the memory that `_memory` found."""
    parts: dict[tuple[str, str], dict[str, Tensor]] = {}
    inner: dict[str, dict[str, Tensor]] = {}
    for name, tensor in sorted(memory.items()):
        head, dot, rest = name.partition(".")
        if dot and isinstance(vars(strategy).get(head), Strategy):
            inner.setdefault(head, {})[rest] = tensor
        elif name.endswith("="):
            value = float(tensor)
            setattr(strategy, name[:-1], int(value) if isinstance(getattr(strategy, name[:-1]), int) else value)
        else:
            attribute, _, rest = name.partition(":")
            kind, _, key = rest.split("/", 2)
            parts.setdefault((attribute, kind), {})[key] = tensor
    for head, saved in inner.items():
        _remember(vars(strategy)[head], saved)
    for (attribute, kind), tensors in parts.items():
        arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
        if kind == "record":
            setattr(strategy, attribute, ArrayRecord({key: Array(array) for key, array in arrays.items()}))
        elif kind == "dict":
            setattr(strategy, attribute, arrays)
        else:
            setattr(strategy, attribute, list(arrays.values()))
