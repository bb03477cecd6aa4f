"""What a client does with a model: train it on its own samples, and see how well it does. The data lies in
memory as tensors, so a batch is one index, one gather for crops and flips and one normalisation: no loop
over images."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.fleet.scratch import device_of, evaluating, seeded
from tramark.lab.data.dataset import Dataset
from tramark.marks.split import channels_last

PADDING = 4

OptimiserName = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True)
class LocalTraining:
    """Training on the client's samples: by default plain SGD with the settings of the paper's code.

    >>> from tramark.lab.models import build
    >>> inputs, labels = torch.eye(8).repeat(8, 1), torch.arange(8).repeat(8)
    >>> data = Dataset("eye", inputs, labels, inputs, labels, classes=8, kind="tabular")
    >>> model = build("mlp", input_shape=data.input_shape, classes=8, seed=0)
    >>> train = LocalTraining(epochs=20, batch_size=8, lr=0.1)
    >>> loss = train(model, data, torch.arange(64), generator=torch.Generator().manual_seed(0))
    >>> accuracy(model, inputs, labels, prepare=data.prepare)
    1.0
    """

    epochs: int = 5
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    drop_last: bool = True
    optimiser: OptimiserName = "sgd"
    """Adam and AdamW have no use for the momentum."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise SettingError(f"epochs and batch_size must be at least 1: {self}")

    def __call__(
        self,
        model: nn.Module,
        dataset: Dataset,
        indices: Tensor,
        *,
        generator: torch.Generator,
        extra: Callable[[nn.Module], Tensor] | None = None,
        only: Collection[str] | None = None,
    ) -> float:
        """Trains the model in place and returns the mean loss over all batches.

        The generator decides everything random, dropout included. A last batch that is not full is left out,
        unless it is the only one. `extra` is a loss of the model that is added at every step, and `only` names the
        parameters that move.
        """
        if not len(indices):
            raise SettingError("no samples to train on: indices is empty")
        device = device_of(model)
        inputs, labels = dataset.train_inputs, dataset.train_labels
        moving = [weight for name, weight in model.named_parameters() if only is None or name in only]
        optimiser = self._optimiser([weight for weight in moving if weight.requires_grad])
        losses = []
        model.train()
        with seeded(generator, device), _kernels_channels_last(model):
            for _ in range(self.epochs):
                for batch in self._batches(indices, generator):
                    x, y = inputs[batch], labels[batch].to(device)
                    if dataset.augment:
                        x = crop_and_flip(x, generator=generator)
                    loss = F.cross_entropy(model(channels_last(dataset.prepare(x.to(device)))), y)
                    if extra is not None:
                        loss = loss + extra(model)
                    model.zero_grad()
                    loss.backward()
                    optimiser.step()
                    losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    def _optimiser(self, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimiser == "sgd":
            return torch.optim.SGD(weights, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.optimiser == "adam" else torch.optim.AdamW
        return kind(weights, lr=self.lr, weight_decay=self.weight_decay)

    def _batches(self, indices: Tensor, generator: torch.Generator) -> list[Tensor]:
        order = indices[torch.randperm(len(indices), generator=generator)]
        batches = list(torch.split(order, self.batch_size))
        incomplete = len(batches[-1]) < self.batch_size
        return batches[:-1] if self.drop_last and incomplete and len(batches) > 1 else batches


@dataclass(frozen=True, eq=False)
class Practice:
    """A client's ordinary training on its own samples, ready to be called by a method that adds to it."""

    training: LocalTraining
    dataset: Dataset
    indices: Tensor
    generator: torch.Generator
    """Decides everything random that the client does in this round."""

    @property
    def epochs(self) -> int:
        """The number of epochs, unless a call says otherwise."""
        return self.training.epochs

    def __call__(
        self,
        model: nn.Module,
        *,
        epochs: int | None = None,
        extra: Callable[[nn.Module], Tensor] | None = None,
        only: Collection[str] | None = None,
    ) -> float:
        """Train the model in place. `extra` is a loss that is added at every step; `only` these weights move."""
        training = self.training if epochs is None else replace(self.training, epochs=epochs)
        return training(model, self.dataset, self.indices, generator=self.generator, extra=extra, only=only)

    def some(self, count: int) -> tuple[Tensor, Tensor]:
        """The client's first `count` samples, raw, with their labels."""
        chosen = self.indices[:count]
        return self.dataset.train_inputs[chosen], self.dataset.train_labels[chosen]

    def prepare(self, raw: Tensor) -> Tensor:
        """Raw inputs as the model takes them."""
        return self.dataset.prepare(raw)


def crop_and_flip(images: Tensor, *, generator: torch.Generator) -> Tensor:
    """Each image moved by up to four pixels either way, black moving in, and mirrored half of the time.

    >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    >>> crop_and_flip(images, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """
    number, _, height, width = images.shape
    down, right = torch.randint(2 * PADDING + 1, (2, number, 1), generator=generator)
    mirrored = torch.rand(number, 1, generator=generator) < 0.5
    rows = down + torch.arange(height)
    columns = right + torch.where(mirrored, torch.arange(width - 1, -1, -1), torch.arange(width))
    padded = F.pad(images, (PADDING,) * 4).permute(0, 2, 3, 1)
    chosen = padded[torch.arange(number).view(-1, 1, 1), rows[:, :, None], columns[:, None, :]]
    return chosen.permute(0, 3, 1, 2)


def predict(
    model: nn.Module,
    inputs: Tensor,
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 1000,
) -> Tensor:
    """The model's logits for these inputs, in evaluation mode and without gradients, on the inputs' device.

    >>> predict(nn.Identity(), torch.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if not len(inputs):
        raise SettingError("no inputs to predict")
    device = next((weight.device for weight in model.parameters()), inputs.device)
    with evaluating(model), torch.no_grad():
        return torch.cat(
            [
                model(channels_last((prepare(batch) if prepare else batch).to(device))).to(inputs.device)
                for batch in torch.split(inputs, batch_size)
            ]
        )


def accuracy(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 1000,
) -> float:
    """The share of inputs to which the model gives their label.

    >>> accuracy(nn.Identity(), torch.eye(4), torch.tensor([0, 1, 2, 2]))
    0.75
    """
    if len(inputs) != len(labels):
        raise SettingError(f"{len(inputs)} inputs but {len(labels)} labels")
    answers = predict(model, inputs, prepare=prepare, batch_size=batch_size).argmax(dim=1)
    return float((answers == labels).double().mean())


@contextmanager
def _kernels_channels_last(model: nn.Module) -> Iterator[None]:
    """Kernels in the layout in which convolutions are fastest. After the block the trained values are back
    in the tensors that the model came with, which may be views of a larger one."""
    kernels = [(weight, weight.data) for weight in model.parameters() if weight.dim() == 4]
    for weight, original in kernels:
        weight.data = original.contiguous(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for weight, original in kernels:
            original.copy_(weight.data)
            weight.data = original
