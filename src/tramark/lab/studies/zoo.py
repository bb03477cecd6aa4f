"""The zoo: federations of strangers, over data, nets, optimisers, splits and sizes, all with one default.

A third of them, drawn at random when the list was made, is held back: nothing may be tuned on it, and it is run once,
at the end. `HELD_BACK` names it. Of the others, four were changed after a look at FedAvg alone, which had learnt
nothing in them: other rates, epochs or data, before any mark was made there.
"""

from dataclasses import dataclass
from typing import Literal

from tramark.lab.simulation.client import LocalTraining, OptimiserName


@dataclass(frozen=True)
class Federation:
    """One federation of the zoo."""

    name: str
    task: str
    net: str
    clients: int
    samples: int
    """Samples a client has, in the mean."""
    optimiser: OptimiserName
    lr: float
    rounds: int
    batch: int = 32
    epochs: int = 1
    momentum: float = 0.9
    decay: float = 0.0
    split: Literal["iid", "dirichlet 0.5", "dirichlet 0.1"] = "iid"

    @property
    def training(self) -> LocalTraining:
        """How its clients train."""
        return LocalTraining(
            epochs=self.epochs,
            batch_size=self.batch,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.decay,
            optimiser=self.optimiser,
        )


_F = Federation

ZOO: tuple[Federation, ...] = (
    # Pictures with a hidden linear layer.
    _F("clothes-cnn", "fashion-mnist", "cnn", 10, 200, "sgd", 0.01, 16, batch=16),
    _F("clothes-bn-adam", "fashion-mnist", "bn-cnn-dropout", 10, 300, "adam", 1e-3, 14, split="dirichlet 0.5"),
    _F("twenty-bn64-sgd", "digits-and-clothes", "bn-cnn-64", 10, 400, "sgd", 0.05, 14),
    _F("fifty-bn-adam", "cifar-50", "bn-cnn-dropout", 10, 800, "adam", 1e-3, 20),
    _F("hundred-bn-sgd", "cifar-100", "bn-cnn", 8, 1500, "sgd", 0.02, 16, decay=5e-4),
    _F("colour-small-cnn", "cifar-10", "small-cnn", 20, 300, "sgd", 0.02, 20, batch=16),
    _F("houses-cnn-adam", "svhn", "small-cnn", 10, 600, "adam", 1e-3, 18, split="dirichlet 0.5"),
    _F("houses-bn-bn", "svhn", "bn-cnn-bn", 8, 600, "adamw", 1e-3, 16, decay=1e-2),
    _F("two-hundred-bn", "tiny-imagenet-32", "bn-cnn", 10, 1500, "adam", 1e-3, 14),
    _F("lungs-bn-adam", "pneumonia-mnist", "bn-cnn", 8, 80, "adam", 1e-3, 16, batch=16),
    _F("lungs-cnn-sgd", "pneumonia-mnist", "small-cnn", 6, 400, "sgd", 0.05, 14, momentum=0.0),
    _F("digits-forty", "mnist", "mlp", 40, 100, "sgd", 0.1, 16, batch=10, momentum=0.0),
    _F("digits-ten-epochs", "digits", "small-cnn", 4, 300, "sgd", 0.01, 10, batch=8, epochs=10),
    _F("digits-skewed", "mnist", "small-cnn", 10, 300, "sgd", 0.02, 16, split="dirichlet 0.1", epochs=2),
    # Pictures without one, with ways around, or with attention.
    _F("houses-residual-sgd", "svhn-16", "group-norm-residual", 8, 500, "sgd", 0.05, 24),
    _F("clothes-residual-adam", "fashion-mnist", "group-norm-residual", 6, 200, "adam", 1e-3, 14, batch=8),
    _F("colour-convolutions", "cifar-10", "bn-convolutions", 8, 600, "sgd", 0.05, 18, batch=64),
    _F("digits-resnet18", "digits", "resnet18", 4, 300, "sgd", 0.02, 10),
    _F("colour-convnext", "cifar-10", "convnext", 8, 600, "adamw", 1e-3, 20, decay=1e-2),
    _F("clothes-vit", "fashion-mnist", "vit", 5, 500, "adamw", 1e-3, 18, decay=1e-2),
    _F("digits-vit-adam", "mnist", "vit", 10, 300, "adam", 3e-4, 20, epochs=2),
    _F("colour-efficientnet", "cifar-10", "efficientnet-frozen", 8, 150, "adam", 1e-3, 10),
    # Text.
    _F("films-bilstm", "sst2", "bilstm", 5, 800, "adam", 1e-3, 12),
    _F("films-lstm", "sst2", "lstm", 4, 1000, "adam", 2e-3, 12),
    _F("films-transformer", "sst2", "transformer", 6, 700, "adamw", 1e-3, 12, decay=1e-2),
    _F("films-words-sgd", "sst2", "bag-of-words", 10, 500, "sgd", 0.1, 20),
    _F("films-minilm-lora", "sst2-wordpiece", "minilm-lora", 4, 100, "adamw", 1e-3, 8, decay=1e-2),
    _F("tokens-transformer", "mnist-tokens", "transformer", 8, 500, "adam", 2e-3, 16, epochs=2),
    _F("tokens-gru", "fashion-tokens", "gru", 6, 600, "adam", 3e-3, 14, split="dirichlet 0.5"),
    # Tables.
    _F("income-bn-adam", "adult", "bn-mlp", 10, 1000, "adam", 1e-3, 12),
    _F("income-mlp-sgd", "adult", "mlp", 20, 500, "sgd", 0.05, 14, split="dirichlet 0.5"),
    _F("income-residual", "adult", "residual-mlp", 8, 800, "adam", 1e-4, 16, batch=16),
    _F("digits-rows-adamw", "digits-rows", "bn-mlp", 5, 250, "adamw", 3e-3, 12, batch=16, decay=1e-2),
)

HELD_BACK: frozenset[str] = frozenset(
    {
        "fifty-bn-adam",
        "lungs-bn-adam",
        "houses-residual-sgd",
        "colour-convolutions",
        "colour-convnext",
        "clothes-vit",
        "films-bilstm",
        "films-words-sgd",
        "films-minilm-lora",
        "income-bn-adam",
        "income-mlp-sgd",
    }
)
"""Drawn at random from the list before anything was run."""
