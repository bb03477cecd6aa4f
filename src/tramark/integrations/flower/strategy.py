"""tramark on Flower: a strategy that holds another one, and gives every node a model of its own.

    strategy = FedAvg(fraction_train=0.5)
    strategy = TraMarkStrategy(strategy, model=Net(), vault="vault", input_shape=(3, 32, 32))

The inner strategy notices nothing. It samples nodes and sends the base model; each message gets its own client's model
instead. The inner strategy receives the replies with the client's mark taken off, base + (returned − sent), so that a
mean, a median or an adaptive optimiser keeps its meaning. What it makes of them is the next base. A
finished round is in the vault before anything of the next is sent, and an app that is started again with the same
vault goes on after the last finished round.

Messages are sent and replies fetched a few at a time. For strategies that use nothing but the weighted mean of what
came back, that mean is kept instead of the replies, so that the server never holds many models at once.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from tramark.errors import SettingError, UpdateError
from tramark.evidence.beacon import BeaconSource
from tramark.fleet.logits import Pick
from tramark.fleet.travels import Travels, travelling
from tramark.integrations.flower.exchange import LINEAR, Exchange
from tramark.integrations.flower.grid import Gradually
from tramark.integrations.flower.memory import RememberingServer, memory_of
from tramark.integrations.flower.nodes import Nodes, identify_nodes
from tramark.integrations.flower.records import Arrays, consistent, weight_of, with_arrays
from tramark.integrations.vaults import open_or_make, outputs_of
from tramark.keys.sources import Normalise, Source
from tramark.marks.begin import Beginning, Warmup, begin_after
from tramark.marks.injection import Injection
from tramark.server import TraMark
from tramark.vault.store import Vault


class TraMarkStrategy(Strategy):
    """A Flower strategy whose every node gets its own marked model.

    Parameters
    ----------
    strategy : the inner strategy, which samples nodes and aggregates.
    model : a model of the architecture that is trained. It is copied, and its device is used for making marks.
    vault : a `Vault`, or where to open one or make it. An existing one is gone on with.
    input_shape, normalise, source, classes, questions : what a new vault's keyring is made for; see
        `Keyring.generate`. Without `classes` it is the number of outputs of the model's last linear layer.
    warmup_rounds, preset, injection, logits, travels, beacon, weight_cap : as for `TraMark`; initial arrays may also
        say what travels. The number of rounds is learnt from `start`.
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
        normalise: Normalise | None = None,
        source: Source | None = None,
        classes: int | None = None,
        questions: int | None = None,
        warmup_rounds: Warmup = "auto",
        preset: str = "default",
        injection: Injection | None = None,
        logits: Pick | None = None,
        travels: Travels | None = None,
        beacon: BeaconSource | None = None,
        weight_cap: float | None = 10.0,
        identify: "Callable[[Grid, Sequence[int]], Mapping[int, str]] | None" = None,
    ) -> None:
        self.strategy = strategy
        self.server: TraMark | None = None
        self._model = copy.deepcopy(model)
        self._place = vault
        self._new: dict[str, Any] = {
            "input_shape": input_shape,
            "normalise": normalise,
            "source": source,
            "classes": classes or outputs_of(model),
            "questions": questions,
        }
        self._options: dict[str, Any] = {
            "warmup_rounds": warmup_rounds,
            "preset": preset,
            "injection": injection,
            "logits": logits,
            "travels": None if travels is None else travelling(model, travels),
            "beacon": beacon,
            "weight_cap": weight_cap,
        }
        self._nodes = Nodes(identify or identify_nodes)
        self._at_first = memory_of(strategy)
        self._arrays: Arrays | None = None
        self._record: ArrayRecord | None = None
        self._exchange: Exchange | None = None
        self._done = 0

    def summary(self) -> None:
        """Log how the federation is set up, as a tree."""
        log(INFO, "\t├──> TraMark:")
        log(INFO, "\t│\t├── Vault: %s", self._place.path if isinstance(self._place, Vault) else self._place)
        warmup, rounds = self._options["warmup_rounds"], self._options.get("rounds")
        log(INFO, "\t│\t├── Warm-up rounds: %s", begin_after(warmup, rounds) if rounds else warmup)
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
        """Train for `num_rounds` in all, those in the vault included; `SettingError` if none would be marked."""
        arrays = self.resume(initial_arrays)
        done = self._done
        if num_rounds > done:
            self._options["rounds"] = num_rounds
            (self.server or Beginning(self._options["warmup_rounds"])).expect(num_rounds)
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
        if self.server is None or not self.server.marked:
            log(WARNING, "no round was marked: nothing that clients hold now can be traced to them")
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
        server = self._ready
        aggregation = server.begin(discards=not self._linear)
        exchange = self._exchange or Exchange(server, self._known, self.strategy, linear=self._linear)
        usable, failed = exchange.take(replies, aggregation)
        if self._linear and usable:
            mean = self._known.record(aggregation.mean())
            for reply in usable.values():
                reply.content = with_arrays(reply.content, mean)
        # In the clients' order, whatever the order in which they answered.
        inner = [usable[client] for client in server.fleet.clients if client in usable]
        arrays, metrics = self.strategy.aggregate_train(server_round + self._done, [*inner, *failed])
        if arrays is None:
            aggregation, base = server.begin() if aggregation.taken else aggregation, None
        else:
            base = self._known.state(arrays)
            # A mean of copies of the mean differs from it in the last bit, by which two runs would drift apart.
            if self._linear and aggregation.gives(base):
                base = None
        report = server.end(aggregation, base, refused=exchange.refused)
        log(INFO, "%s", report)
        if report.survived is not None:
            metrics = metrics or MetricRecord()
            metrics["tramark-survival"] = report.survived.mean
            metrics["tramark-survival-least"] = report.survived.least
            metrics["tramark-margin-left"] = report.survived.margin
        self._record = None
        return (None if arrays is None else self._base()), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What the inner strategy makes of the evaluations."""
        replies = list(replies)
        fine = {reply.metadata.reply_to_message_id: reply for reply in replies if self._weighs(reply)}
        failed = [reply for reply in replies if reply.has_error()]
        alike = list(consistent(fine).values())
        if left_out := len(replies) - len(alike) - len(failed):
            log(WARNING, "%s evaluations cannot be used: they have no weight, or other metrics than most", left_out)
        return self.strategy.aggregate_evaluate(server_round + self._done, [*alike, *failed])

    def _weighs(self, reply: Message) -> bool:
        """Whether a reply has a weight by which its metrics can be averaged."""
        try:
            return not reply.has_error() and 0 < weight_of("", reply, self.strategy) < math.inf
        except UpdateError:
            return False

    def resume(self, initial: ArrayRecord) -> ArrayRecord:
        """Open the vault, if there is one, and restore the server; returns the arrays to begin with.

        `start` does it. A strategy around this one has a start of its own: give it these arrays, and `done` rounds
        fewer.
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
    def _known(self) -> Arrays:
        assert self._arrays is not None
        return self._arrays

    @property
    def _linear(self) -> bool:
        return type(self.strategy) in LINEAR

    def _personal(self, messages: Iterable[Message], arrays: ArrayRecord, grid: Grid) -> Iterable[Message]:
        """The messages, each with its own client's model."""
        messages = list(messages)
        self._exchange = None
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
        self._exchange = Exchange(server, self._known, self.strategy, linear=self._linear)
        outgoing = self._exchange.send(allowed, names, arrays, self._base())
        # A grid of Flower's own goes through the messages twice.
        return outgoing if isinstance(grid, Gradually) else list(outgoing)

    def _serve(self, arrays: ArrayRecord, clients: Iterable[str]) -> None:
        """Make sure that the server knows these clients and has these arrays as its base."""
        clients = sorted(set(clients))
        if self.server is None:
            if not isinstance(self._place, Vault):
                self._place = open_or_make(Path(self._place), clients, self._new, warn=partial(log, WARNING))
            if self._place.saved() is not None:
                raise SettingError(
                    "the vault holds a training already: a strategy around this one must start with what resume() gives"
                )
            self._begin(arrays)
        server = self._ready
        if new := [client for client in clients if client not in server.fleet]:
            log(INFO, "new clients: %s", ", ".join(new))
            server.join(*new)
        if self._record is not None and arrays is not self._record:
            # A strategy around this one, such as differential privacy, has changed the base.
            server.rebase(self._known.state(arrays))
            self._record = arrays

    def _begin(self, arrays: ArrayRecord) -> None:
        self._arrays = Arrays(self._model, arrays, self._options["travels"])
        self._options["travels"] = self._arrays.travels
        self._model.load_state_dict({**self._model.state_dict(), **self._arrays.state(arrays)})
        self.server = RememberingServer(self.strategy, self._at_first, self._model, vault=self.vault, **self._options)
        self._record = arrays
        self._nodes.begin(self.vault)

    def _base(self) -> ArrayRecord:
        """The unmarked base, made once a round."""
        if self._record is None:
            self._record = self._known.record(self._ready.fleet.state())
        return self._record
