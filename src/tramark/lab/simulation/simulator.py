"""A federation on one machine: the paper's clients, trained on their own samples, one after another or some at a time.

All randomness comes from the seed, the number of the round and the number of the client, so that a run that was
stopped after any round and resumed goes on exactly as it would have gone on.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from tramark.errors import SettingError
from tramark.fleet.scratch import device_of
from tramark.lab.data import Dataset
from tramark.lab.methods import ClientSide, Method, Verifiable
from tramark.lab.simulation.client import LocalTraining, Practice
from tramark.lab.simulation.metrics import task_accuracy
from tramark.lab.simulation.workers import Workers

Models = Mapping[str, dict[str, Tensor]]
Keep = Callable[[str, dict[str, Tensor]], None]
"""Takes a client's model as the client has just trained it."""


@dataclass
class Simulation:
    """Clients with their samples around a server.

    Parameters
    ----------
    method : the server.
    dataset, parts : the data, and which training samples each client holds.
    training : how clients train.
    sample_fraction : the share of clients that take part in a round.
    seed : for everything the clients do.
    evaluation_samples : test images used for the accuracy after each round; None takes all.
    weighted : whether updates count by their clients' numbers of samples, or all alike.
    workers : how many processes train clients, on the CPU and with one thread each; 1 trains them in this one, with all
        of torch's threads. Processes start with the first round and stop with `close`, or at the end of a `with` block.
    """

    method: Method
    dataset: Dataset
    parts: Sequence[Tensor]
    training: LocalTraining = field(default_factory=LocalTraining)
    sample_fraction: float = 1.0
    seed: int = 0
    evaluation_samples: int | None = 2000
    workers: int = 1
    weighted: bool = True

    def __post_init__(self) -> None:
        if len(self.parts) != len(self.method.fleet.clients):
            raise SettingError(f"{len(self.parts)} parts of the data for {len(self.method.fleet.clients)} clients")
        if not 0 < self.sample_fraction <= 1:
            raise SettingError(f"the fraction of clients sampled must lie in (0, 1], not {self.sample_fraction}")
        if self.workers < 1:
            raise SettingError(f"{self.workers} workers: there must be at least one")
        self._scratch = copy.deepcopy(self.method.model)
        if self.workers > 1 and device_of(self._scratch).type != "cpu":
            raise SettingError(
                f"workers train on the CPU, but the model is on {device_of(self._scratch)}: leave them at 1"
            )
        if self.workers > 1 and self.method.fleet.constant:
            raise SettingError("workers train whole models, but only a part of this one travels: leave them at 1")
        self._pool: Workers | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Workers:
        """Have the workers ready. The first round would see to it too, and take the longer for it."""
        if self._pool is not None and not self._pool.idle:
            self.close()
        if self._pool is None:
            count = min(self.workers, len(self.parts))
            self._pool = Workers(count, self._scratch, self.dataset, self.parts, self.training)
        return self._pool

    def close(self) -> None:
        """Stop the workers, if there are any. Another round starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def step(self, *, keep: Keep | None = None) -> dict[str, Any]:
        """One round; returns its metrics. `keep` is called with each client's model before the round is collected."""
        sizes = {c: float(len(part)) for c, part in zip(self.method.fleet.clients, self.parts, strict=True)}
        confidences: list[float] = []
        trained = self._watched(self._train(*self._begin()), confidences, keep)
        report = self.method.collect(trained, samples=sizes if self.weighted else None)
        survived = report.survived
        return {
            "round": report.round,
            "clients": len(report.used),
            **({"confidence_trained": sum(confidences) / len(confidences)} if confidences else {}),
            **({"survival": survived.mean, "margin_left": survived.margin} if survived else {}),
            **self.measure(self.evaluation_samples),
        }

    def train(self) -> dict[str, dict[str, Tensor]]:
        """What the clients of the next round would return, all at once, without ending the round."""
        return {client: _copied(state) for client, state in self._train(*self._begin())}

    def measure(self, samples: int | None = None) -> dict[str, Any]:
        """The fleet's metrics now: MA on `samples` test images (all, unless told) and, once marked, traceability."""
        accuracy = task_accuracy(self.method, self.dataset, samples=samples)
        metrics: dict[str, Any] = {"ma": sum(accuracy.values()) / len(accuracy)}
        per_client: dict[str, dict[str, float]] = {client: {"ma": ma} for client, ma in accuracy.items()}
        found = self.method.measure(samples)
        for client, values in found.pop("per_client", {}).items():
            per_client[client] |= values
        return metrics | found | {"per_client": per_client}

    def _begin(self) -> tuple[list[int], Models]:
        """Draw the clients of a round and dispatch their models."""
        taking_part = self._sample()
        clients = self.method.fleet.clients
        return taking_part, self.method.dispatch([clients[i] for i in taking_part])

    def _train(self, taking_part: Sequence[int], outgoing: Models) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yields each client with the model that it trained, which is overwritten by the next one's."""
        clients = self.method.fleet.clients
        # A method with something to do on the clients' side notes it in itself, which it could not do elsewhere.
        alone = min(self.workers, len(taking_part)) == 1 or isinstance(self.method, ClientSide)
        for i in (self._in_turn if alone else self._by_workers)(taking_part, outgoing):
            own = self._scratch.state_dict()
            yield clients[i], {name: own[name] for name in own if name not in self.method.fleet.constant}

    def _watched(
        self, trained: Iterator[tuple[str, dict[str, Tensor]]], confidences: list[float], keep: Keep | None
    ) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yields the trained models after measuring what is left of their marks."""
        for client, state in trained:
            if isinstance(self.method, Verifiable) and self.method.marked:
                confidences.append(self.method.confidence(self._scratch, client))
            if keep is not None:
                keep(client, _copied(state))
            yield client, state

    def _in_turn(self, taking_part: Sequence[int], outgoing: Models) -> Iterator[int]:
        """Yields each client after training its model in the scratch model."""
        clients = self.method.fleet.clients
        for i in taking_part:
            # What does not travel is in the scratch model, and nobody changes it.
            self._scratch.load_state_dict(outgoing[clients[i]], strict=not self.method.fleet.constant)
            practice = Practice(self.training, self.dataset, self.parts[i], _generator(self._seed(i + 1)))
            if isinstance(self.method, ClientSide):
                self.method.train_client(clients[i], self._scratch, practice)
            else:
                practice(self._scratch)
            yield i

    def _by_workers(self, taking_part: Sequence[int], outgoing: Models) -> Iterator[int]:
        """Yields each client after loading the model that a worker trained into the scratch model."""
        clients = self.method.fleet.clients
        for i, state in self.start().train((i, self._seed(i + 1), outgoing[clients[i]]) for i in taking_part):
            self._scratch.load_state_dict(state)
            yield i

    def _sample(self) -> list[int]:
        count = len(self.parts)
        chosen = torch.randperm(count, generator=_generator(self._seed(0)))[
            : max(1, round(self.sample_fraction * count))
        ]
        return sorted(chosen.tolist())

    def _seed(self, who: int) -> int:
        return ((self.seed + 1) * 1_000_003 + self.method.round) * 1_000_003 + who


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu().clone() for name, tensor in state.items()}
