"""Federated training without any framework, in which every client's model can be traced.

    python examples/custom_loop/train.py --out runs/loop

Clients are plain functions that run in threads. Everything that the server must remember is in a vault: stopped at
any moment and started again, it goes on after the last round that was finished.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import Keyring, TraMark, trace
from tramark.lab.data import load
from tramark.lab.simulation.partition import iid
from tramark.vault.lock import default_key_file, make_key_file
from tramark.vault.store import Vault

CLIENTS = ["charite", "mayo", "karolinska", "lund", "oslo"]
LEAKER = "mayo"

State = dict[str, Tensor]


def make_model() -> nn.Module:
    """Layers with room to spare: marks live where the data does not go."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def train(weights: State, inputs: Tensor, labels: Tensor) -> State:
    """What a client does with the weights that it is sent: it knows nothing of marks."""
    model = make_model()
    model.load_state_dict(weights)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        for batch in torch.randperm(len(inputs)).split(32):
            optimiser.zero_grad()
            F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimiser.step()
    return model.state_dict()


def open_vault(path: Path) -> Vault:
    """The vault, made with keys for everybody if this is the first time."""
    if path.exists():
        return Vault.open(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    keyring = Keyring.generate(clients=CLIENTS, classes=10, input_shape=(1, 8, 8))
    return Vault.create(path, keyring, key_file=make_key_file(default_key_file(path)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/loop"), help="folder for the vault and the leak")
    parser.add_argument("--rounds", type=int, default=12, help="rounds in all")
    options = parser.parse_args()

    torch.manual_seed(0)
    digits = load("digits")
    inputs = digits.prepare(digits.train_inputs)
    shares = iid(digits.train_labels, len(CLIENTS), generator=torch.Generator().manual_seed(0))
    data = {name: (inputs[own], digits.train_labels[own]) for name, own in zip(CLIENTS, shares, strict=True)}

    with open_vault(options.out / "vault") as vault, ThreadPoolExecutor() as threads:
        server = TraMark(make_model(), vault=vault, warmup_rounds=8)
        if server.resume():
            print(f"going on after round {server.round}")
        while server.round < options.rounds:
            outgoing = server.dispatch()
            jobs = {name: threads.submit(train, outgoing[name], *data[name]) for name in outgoing}
            returned = {name: job.result() for name, job in jobs.items()}
            torch.save(returned[LEAKER], options.out / "leaked.pt")
            server.collect(returned, weights={name: len(data[name][0]) for name in returned})
            right = server.base_model()(digits.prepare(digits.test_inputs)).argmax(1) == digits.test_labels
            state = "marked" if server.marked else "warm-up"
            print(f"round {server.round}: accuracy {right.float().mean():.2f}, {state}")

        suspect = make_model()
        suspect.load_state_dict(torch.load(options.out / "leaked.pt"))
        verdict = trace(suspect, server.keyring)
    print(f"leaked.pt: {', '.join(verdict.clients) or verdict.finding}, after {verdict.queries} questions")


if __name__ == "__main__":
    main()
