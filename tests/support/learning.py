"""Small federations that learn a toy task in seconds, for any net."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from nets import drawing, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import TraMark
from tramark.marks.rounds import RoundReport

Optimiser = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Toy:
    """A toy task: inputs and labels, the last fifth of them for tests."""

    inputs: Tensor
    labels: Tensor

    @property
    def known(self) -> int:
        return len(self.labels) * 4 // 5

    def accuracy(self, model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            return float((model(self.inputs[self.known :]).argmax(1) == self.labels[self.known :]).float().mean())

    def part(self, row: int, count: int) -> tuple[Tensor, Tensor]:
        """One client's share of the rest."""
        own = slice(row, self.known, count)
        return self.inputs[own], self.labels[own]


def pictures(classes: int = 10, count: int = 1000) -> Toy:
    """8×8 images of one channel: a blurred shape for each class, and noise."""
    shapes = F.interpolate(torch.randn(classes, 1, 4, 4, generator=drawing()), size=8, mode="bilinear")
    labels = torch.randint(classes, (count,), generator=drawing(3))
    return Toy(1.5 * shapes[labels] + torch.randn(count, 1, 8, 8, generator=drawing(1)), labels)


def texts(classes: int = 4, count: int = 1000, vocabulary: int = 300, length: int = 12) -> Toy:
    """Token ids: a third of a text's words are of its class."""
    labels = torch.randint(classes, (count,), generator=drawing(3))
    words = torch.randint(1, vocabulary, (count, length), generator=drawing())
    own = 1 + labels[:, None] * 8 + torch.randint(8, (count, length), generator=drawing(1))
    return Toy(torch.where(torch.rand(count, length, generator=drawing(2)) < 0.35, own, words), labels)


def tables(count: int = 1000, columns: int = 12) -> Toy:
    """Standardised columns, and two classes: whether two of the columns have the same sign, mostly."""
    inputs = torch.randn(count, columns, generator=drawing())
    return Toy(inputs, (inputs[:, 0] * inputs[:, 1] + 0.7 * inputs[:, 2] > 0).long())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=2e-3)


def trained(model: nn.Module, inputs: Tensor, labels: Tensor, optimiser: Optimiser, *, seed: int) -> nn.Module:
    """The model after a pass over some samples."""
    steps = optimiser(model.train())
    order = torch.randperm(len(labels), generator=drawing(seed))
    with seeded(seed):
        for some in order.split(32):
            steps.zero_grad()
            F.cross_entropy(model(inputs[some]), labels[some]).backward()
            steps.step()
    return model


def learnt(model: nn.Module, toy: Toy, passes: int, optimiser: Optimiser) -> nn.Module:
    """The model after some passes over all samples: a federation whose warm-up is nearly over."""
    for seed in range(passes):
        trained(model, toy.inputs[: toy.known], toy.labels[: toy.known], optimiser, seed=seed)
    return model


def play(server: TraMark, toy: Toy, rounds: int, optimiser: Optimiser = sgd) -> list[RoundReport]:
    """Rounds in which every client trains on its part."""

    def returned() -> Iterator[tuple[str, dict[str, Tensor]]]:
        for row, client in enumerate(server.fleet.clients):
            own = toy.part(row, len(server.fleet.clients))
            model = trained(server.client_model(client), *own, optimiser, seed=100 * server.round + row)
            yield client, model.state_dict()

    return [server.collect(returned()) for _ in range(rounds)]
