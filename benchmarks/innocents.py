"""How often innocent clients' answers turn up in models that were made with others': the size of an approximation.

The bound on false accusations calls a client innocent if the suspect was made without its model, and takes its codeword
to be independent of the suspect. But models of one federation are trained together: the base was trained by clients
whose models had marks. This program runs small federations for many rounds and asks every issued model, every returned
one and the base: how many of their answers are those of *other* clients, beside one in r by chance?

    python benchmarks/innocents.py
"""

import argparse
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import Keyring, TraMark

CLASSES, CLIENTS = 10, 10


def task(seed: int) -> tuple[Tensor, Tensor]:
    """8×8 pictures: a blurred shape for each class, and noise."""
    generator = torch.Generator().manual_seed(seed)
    shapes = F.interpolate(torch.randn(CLASSES, 1, 4, 4, generator=generator), size=8, mode="bilinear")
    labels = torch.randint(CLASSES, (1000,), generator=generator)
    return 1.5 * shapes[labels] + torch.randn(1000, 1, 8, 8, generator=generator), labels


def trained(model: nn.Module, inputs: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """The model after two passes over some samples."""
    steps = torch.optim.SGD(model.train().parameters(), lr=0.05, momentum=0.9)
    for some in torch.randperm(2 * len(labels), generator=torch.Generator().manual_seed(seed)).split(32):
        steps.zero_grad()
        F.cross_entropy(model(inputs[some % len(labels)]), labels[some % len(labels)]).backward()
        steps.step()
    return model.eval()


class Count:
    """Matches of innocent clients' answers. A model's answers are shared by all innocents, so models are the sample."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    def add(self, model: nn.Module, keyring: Keyring, maker: str | None) -> None:
        """Ask a model all questions of the clients; everybody but its maker is innocent of it."""
        book = keyring.codebook()
        with torch.no_grad():
            said = model(keyring.source.prepare(keyring.raw(keyring.chosen, "held-out")[:, 0])).argmax(1)
        innocent = [row for row, client in enumerate(keyring.clients) if client != maker]
        self.shares.append(float((book[innocent] == said).float().mean()))


def federation(seed: int, rounds: int) -> Iterator[tuple[str, nn.Module, Keyring, str | None]]:
    """What is issued and returned in the marked rounds of a federation, and its base, with whose it is."""
    inputs, labels = task(seed)
    names = [f"client-{i}" for i in range(CLIENTS)]
    secret = seed.to_bytes(4, "big") * 8
    keyring = Keyring.generate(
        clients=names, classes=CLASSES, input_shape=(1, 8, 8), normalise=(0.5, 0.5), secret=secret
    )
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    server = TraMark(net, keyring, warmup_rounds=2)
    for number in range(rounds):
        returned = {}
        for row, client in enumerate(names):
            model = trained(server.client_model(client), inputs[row::CLIENTS], labels[row::CLIENTS], 100 * number + row)
            returned[client] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            if server.marked:
                yield "returned", model, server.keyring, client
        server.collect(returned)
        if server.marked:
            yield "base", server.base_model(), server.keyring, None
            for client in names:
                yield "issued", server.client_model(client), server.keyring, client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    # Models of one federation share a base and questions, so federations are the sample, not models.
    kinds: dict[str, list[float]] = {"issued": [], "returned": [], "base": []}
    for seed in range(options.federations):
        counts = {kind: Count() for kind in kinds}
        for kind, model, keyring, maker in federation(seed, options.rounds):
            counts[kind].add(model, keyring, maker)
        for kind, count in counts.items():
            kinds[kind].append(sum(count.shares) / len(count.shares))
    print(f"chance: {1 / CLASSES:.4f}; {options.federations} federations of {CLIENTS} clients, {options.rounds} rounds")
    for kind, means in kinds.items():
        mean = sum(means) / len(means)
        spread = math.sqrt(sum((one - mean) ** 2 for one in means) / max(1, len(means) - 1) / len(means))
        print(f"{kind:<9} {mean:.4f} ± {2 * spread:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
