"""NAD (neural attention distillation): the stolen model learns to attend as a fine-tuned copy of itself does.

A teacher is the model after some training on the thief's samples. The student starts as the stolen model and minimises

    CE + β Σ over layers  mean (A_T / ‖A_T‖ − A_S / ‖A_S‖)²

where A is a layer's attention: |activation|² summed over channels, or |activation|² of the units of a linear layer.
Its source takes β = 500 for the first and 1000 for later layers, and 20 epochs at a rate of 0.1, after two epochs 0.01.
Here β is 1000 for all and the rate 0.01, which nets without batch norm need.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import check_training, fit, hidden_layers, some, train


@dataclass(frozen=True)
class NAD:
    """Attention distillation from a fine-tuned teacher.

    Parameters
    ----------
    epochs, lr : of the student.
    tuning_epochs : of the teacher, at the same rate.
    beta : the weight of the attention's loss.
    samples : how many of the thief's samples are used.
    """

    epochs: int = 20
    lr: float = 0.01
    tuning_epochs: int = 10
    beta: float = 1000.0
    samples: int = 2500
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr)
        check_training(self.tuning_epochs, self.lr)
        if not self.beta >= 0:
            raise SettingError(f"beta must not be negative, but is {self.beta}")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        teacher, student, random = copied(model), copied(model), generator(self.seed)
        few = some(loot, self.samples, random)
        train(teacher, few, epochs=self.tuning_epochs, lr=self.lr, generator=random)
        with _attention(teacher) as wanted, _attention(student) as own:

            def loss(inputs: Tensor, labels: Tensor) -> Tensor:
                with torch.no_grad():
                    teacher(inputs)
                task = F.cross_entropy(student(inputs), labels)
                apart = [F.mse_loss(own[name], wanted[name]) for name in wanted]
                return task + self.beta * torch.stack(apart).sum()

            fit(student, few, loss, epochs=self.epochs, lr=self.lr, generator=random, clip=1.0)
        return student


@contextmanager
def _attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The normalised attention of all hidden layers in a model's last run, within the block."""
    seen: dict[str, Tensor] = {}
    handles = []
    for name, layer in hidden_layers(model).items():

        def note(_: nn.Module, __: object, output: Tensor, name: str = name) -> None:
            spread = output.square().sum(1) if output.dim() == 4 else output.square()
            seen[name] = F.normalize(spread.flatten(1), dim=1)

        handles.append(layer.register_forward_hook(note))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
