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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Result, Strategy
from torch import nn

from tramark.errors import NoKey, SettingError, UpdateError
from tramark.fleet.aggregation import Aggregation
from tramark.fleet.layout import State
from tramark.integrations.flower.grid import Gradually
from tramark.integrations.flower.memory import memory_of, remember
from tramark.integrations.flower.nodes import Nodes, identify_nodes
from tramark.keys.keyring import Keyring
from tramark.keys.sources import Source
from tramark.marks.injection import Injection
from tramark.server import TraMark
from tramark.vault.lock import default_key_file, find_key, make_key_file
from tramark.vault.store import Vault

# These use nothing of the replies' arrays but their weighted mean.
_LINEAR: tuple[type[Strategy], ...] = (FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad, FedYogi)


class TraMarkStrategy(Strategy):
    """A Flower strategy whose every node gets its own marked model.

    Parameters
    ----------
    strategy : the inner strategy, which samples nodes and aggregates.
    model : a model of the architecture that is trained. It is copied, and its device is used for making marks.
    vault : a `Vault`, or where to open one or make it. An existing one is gone on with.
    input_shape, source, classes, questions : what a new vault's keyring is made for; see `Keyring.generate`. Without
        `classes` it is the number of outputs of the model's last linear layer.
    warmup_rounds, preset, injection : as for `TraMark`.
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
        source: Source | None = None,
        classes: int | None = None,
        questions: int | None = None,
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
            "source": source,
            "classes": classes or _outputs(model),
            "questions": questions,
        }
        self._options = {"warmup_rounds": warmup_rounds, "preset": preset, "injection": injection}
        self._nodes = Nodes(identify or identify_nodes)
        self._at_first = memory_of(strategy)
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
            Gradually(grid, self._model),
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
        remember(self.strategy, (self.vault.saved() or {}).get("strategy", {}))
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
            raise SettingError("the vault is made when the first round begins, for then the clients are known")
        return self._place

    @property
    def _ready(self) -> TraMark:
        if self.server is None:
            raise SettingError("nothing was sent yet: there is nothing to aggregate")
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
                    raise SettingError(f"{name} does not send the arrays that it was given: they cannot be marked")
                content = RecordDict({k: own if v is arrays else v for k, v in message.content.items()})
                self._sent.append((message.metadata, client))
                # A copy, which goes when it has been sent: the messages themselves are all kept until the round ends.
                outgoing = copy.copy(message)
                outgoing.content = content
                yield outgoing

        # A grid of Flower's own goes through the messages twice.
        return personal() if isinstance(grid, Gradually) else list(personal())

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
                raise SettingError(
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
            raise SettingError(
                f"{len(self._keys)} arrays to begin with do not fit a model of {len(model_state)} tensors"
            )
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


class _Keeper:
    """The vault as the server sees it: with the inner strategy's memory in what is saved."""

    def __init__(self, vault: Vault, outer: TraMarkStrategy) -> None:
        self._vault, self._outer = vault, outer
        self.issue, self.saved = vault.issue, vault.saved

    @property
    def keyring(self) -> Keyring:
        return self._vault.keyring

    def save(self, keyring: Keyring, state: Mapping[str, Any]) -> None:
        memory = memory_of(self._outer.strategy, unlike=self._outer._at_first)
        self._vault.save(keyring, {**state, "strategy": memory})


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
        raise SettingError(f"{type(model).__name__} has no linear layer: say how many labels it has by classes=…")
    return linear[-1].out_features
