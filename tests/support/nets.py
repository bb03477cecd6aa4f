"""Small nets for 8×8 images of one channel and for texts, whose weights follow from a seed."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(*widths: int, inputs: int = 64, classes: int = 10, seed: int = 0, normed: bool = False) -> nn.Module:
    """Hidden layers of these widths; `normed` puts a batch norm behind each of them."""
    with seeded(seed):
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise((inputs, *widths)):
            layers += [nn.Linear(before, after), *([nn.BatchNorm1d(after)] if normed else []), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear((inputs, *widths)[-1], classes))


def cnn(*, classes: int = 10, seed: int = 0, normed: bool = False, dropout: float = 0.0) -> nn.Module:
    """A convolution and two linear layers, with a dropout between them; `normed` puts a batch norm before the first
    ReLU."""
    with seeded(seed):
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3), *([nn.BatchNorm2d(8)] if normed else []), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(8 * 36, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, classes)),
        )


class Attending(nn.Module):
    """A transformer's encoder over token ids, where 0 is padding; torch.fx can trace it."""

    def __init__(self, vocabulary: int = 300, classes: int = 4, *, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.embedding = nn.Embedding(vocabulary, 16, padding_idx=0)
            block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(block, 1, enable_nested_tensor=False)
            self.head = nn.Linear(16, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        logits: Tensor = self.head(hidden.mean(1))
        return logits


class Reading(nn.Module):
    """An LSTM over token ids and positions; torch.fx cannot trace it."""

    def __init__(self, vocabulary: int = 300, classes: int = 4, *, length: int = 12, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.places = nn.Embedding(length, 16)
            self.embedding = nn.Embedding(vocabulary, 16)
            self.lstm = nn.LSTM(16, 24, batch_first=True)
            self.head = nn.Linear(24, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.max() >= self.embedding.num_embeddings:
            raise ValueError("no such token")
        where = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        logits: Tensor = self.head(self.lstm(self.embedding(tokens) + where)[0].mean(1))
        return logits


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Seeds torch's own generator within the block, and leaves it as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def drawing(seed: int = 0) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def headed(*, classes: int = 10, seed: int = 0) -> nn.Module:
    """A frozen backbone with a batch norm, and a trained head with another one."""
    with seeded(seed):
        backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()).requires_grad_(False)
        head = nn.Sequential(nn.Linear(8 * 36, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, classes))
    return nn.Sequential(OrderedDict(backbone=backbone, head=head))


class Adapted(nn.Module):
    """A frozen linear layer plus the product of two small trained ones: LoRA."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.frozen(x) + self.up(self.down(x))
        return adapted


def adapted(*, classes: int = 10, seed: int = 0) -> nn.Module:
    """Two layers with adapters, and a trained head."""
    with seeded(seed):
        return nn.Sequential(
            *(nn.Flatten(), Adapted(64, 64), nn.ReLU(), Adapted(64, 64), nn.ReLU()),
            *(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, classes)),
        )
