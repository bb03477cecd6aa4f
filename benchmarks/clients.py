"""What a client can learn about its own mark, and what that is worth to it.

A client sees its own models, round after round, and what it trained of them; a friend may show it another client's. It
knows the method but not the key. A row says what it compared, how many directions it took from the difference (the
foremost of its marked layer), which share of the region these hold (1 means that it has found it all), and what is left
if it makes the layer blind to them: the model's accuracy, the share of its answers that are still given, and whether
the model is still traced to it or to the friend. `refit` fits the blind layer to the client's own data afterwards.

    python benchmarks/clients.py --data fashion-mnist --model cnn --rounds 12 --json
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rows import parser, show
from tramark.fleet.region import Subspace
from tramark.lab.attacks import Loot
from tramark.lab.attacks.difference import DifferenceDirections, principal
from tramark.lab.methods.tramark import Traced
from tramark.lab.simulation.client import accuracy
from tramark.lab.simulation.run import Settings, prepare
from tramark.lab.simulation.simulator import Simulation

NEARLY_ALL = 0.9999
"""Of the energy of a difference: what is left is rounding."""


class Client:
    """One client, the models that it has, and a friend's."""

    def __init__(self, simulation: Simulation, samples: int) -> None:
        assert isinstance(simulation.method, Traced)
        self.simulation, self.server, self.samples = simulation, simulation.method, samples
        self.me, *self.friends = self.server.fleet.clients

    def models(self) -> dict[str, list[nn.Module]]:
        """What it compares, by a name: its newest model first."""
        before = self.server.client_model(self.me)
        self.simulation.step()
        now, friends = self.server.client_model(self.me), [self.server.client_model(one) for one in self.friends[:2]]
        return {
            "itself": [now],
            "its last two rounds": [now, before],
            "a friend's model": [now, friends[0]],
            "two friends' models": [now, *friends],
        }

    def rows(self, counts: Sequence[int | None]) -> Iterator[dict[str, Any]]:
        for what, models in self.models().items():
            if len(models) == 1:
                yield {"compares": what} | self._left(models[0])
                continue
            for count in counts:
                held, number = self._held(models, count)
                for refit in (False, True):
                    attack = DifferenceDirections(len(models), NEARLY_ALL, count, refit=refit)
                    blind = attack.collude(models, Loot(self.simulation.dataset, self.simulation.parts[0]))
                    yield {
                        "compares": what, "directions": number, "holds": held, "refit": refit, **self._left(blind)
                    }  # fmt: skip

    def _held(self, models: Sequence[nn.Module], count: int | None) -> tuple[float, int]:
        """The share of the region that the foremost directions of the differences hold, and how many these are."""
        region = self.server.fleet.region
        assert isinstance(region, Subspace)
        [part] = region.parts
        rows: list[Tensor] = [part.matrix(self.server.fleet.layout.flatten(model.state_dict())) for model in models]
        mean = torch.stack(rows).mean(0)
        found = principal(torch.cat([row - mean for row in rows]), NEARLY_ALL)[:, :count]
        basis = part.basis.double()
        return round(float((found.T @ basis).square().sum() / basis.shape[1]), 3), found.shape[1]

    def _left(self, model: nn.Module) -> dict[str, Any]:
        data = self.simulation.dataset
        inputs, labels = data.test_inputs[: self.samples], data.test_labels[: self.samples]
        return {
            "accuracy": round(accuracy(model, inputs, labels, prepare=data.prepare), 4),
            "answers": round(self.server.confidence(model, self.me), 3),
            "traced": ", ".join(self.server.verify(model).accused) or "to nobody",
        }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", default="fashion-mnist")
    options.add_argument("--model", default="cnn")
    options.add_argument("--rounds", type=int, default=12, help="before the two that are compared; half are warm-up")
    options.add_argument("--samples", type=int, default=500, help="per client")
    options.add_argument("--local-epochs", type=int, default=2)
    options.add_argument("--lr", type=float, default=0.01)
    options.add_argument("--test-samples", type=int, default=2000)
    options.add_argument("--directions", type=int, nargs="*", default=[16])
    chosen = options.parse_args()
    settings = Settings(
        data=chosen.data, model=chosen.model, samples_per_client=chosen.samples, local_epochs=chosen.local_epochs,
        rounds=chosen.rounds + 1, lr=chosen.lr,
    )  # fmt: skip
    with prepare(settings, workers=1) as simulation:
        simulation.evaluation_samples = 100
        for _ in range(chosen.rounds):
            simulation.step()
        show(list(Client(simulation, chosen.test_samples).rows([*chosen.directions, None])), chosen.json)


if __name__ == "__main__":
    main()
