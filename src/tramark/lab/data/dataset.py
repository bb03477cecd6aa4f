"""A data set is four tensors in memory and what a model must know about them. Images stay bytes until a batch
is prepared: a quarter of the memory of floats, and cropping and flipping touch a quarter of the data."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tramark.errors import DataError

Kind = Literal["image", "tabular", "text"]


# What the inputs of each kind are held as, and with how many dimensions.
LAYOUT: dict[Kind, tuple[torch.dtype, int]] = {
    "image": (torch.uint8, 4),
    "tabular": (torch.float32, 2),
    "text": (torch.int64, 2),
}


@dataclass(frozen=True)
class Dataset:
    """Training and test inputs with their labels.

    Inputs are uint8 NCHW for images, float32 (N, F) for tables and int64 (N, L) for token ids, where 0 pads.
    `mean` and `std` are per channel, of pixels in [0, 1]; left out, they are 0.5. `augment` asks for random
    crops and flips while training.

    >>> images = torch.full((4, 1, 8, 8), 255, dtype=torch.uint8)
    >>> labels = torch.tensor([0, 1, 0, 1])
    >>> white = Dataset("white", images, labels, images, labels, classes=2)
    >>> white.input_shape, white.prepare(images).unique().item()
    ((1, 8, 8), 1.0)
    """

    name: str
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    classes: int
    kind: Kind = "image"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False
    vocabulary: int = 0

    def __post_init__(self) -> None:
        dtype, dimensions = LAYOUT[self.kind]
        for split, inputs, labels in (
            ("train", self.train_inputs, self.train_labels),
            ("test", self.test_inputs, self.test_labels),
        ):
            where = f"{self.name}: {split}"
            if inputs.dtype != dtype or inputs.dim() != dimensions:
                raise DataError(
                    f"{where} inputs are {inputs.dtype} of shape {tuple(inputs.shape)}; "
                    f"{self.kind} inputs must be {dtype} with {dimensions} dimensions"
                )
            if labels.dtype != torch.int64 or labels.shape != inputs.shape[:1]:
                raise DataError(
                    f"{where} labels are {labels.dtype} of shape {tuple(labels.shape)}; "
                    f"they must be int64, one for each of the {len(inputs)} inputs"
                )
            if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < self.classes):
                raise DataError(f"{where} labels must lie in 0..{self.classes - 1}, one for each class")
        if self.train_inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise DataError(
                f"{self.name}: train inputs have shape {tuple(self.train_inputs.shape[1:])} "
                f"and test inputs {tuple(self.test_inputs.shape[1:])}; they must be the same"
            )
        for what, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, 1) and len(values) != self.train_inputs.shape[1]:
                raise DataError(f"{self.name}: {what} has {len(values)} values; give one, or one a channel")
        if self.kind == "text" and self.vocabulary < 1:
            raise DataError(f"{self.name}: a text data set needs its vocabulary, the number of token ids")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, without the batch."""
        return tuple(self.train_inputs.shape[1:])

    def prepare(self, inputs: Tensor) -> Tensor:
        """Inputs as the model takes them: images as normalised float32, anything else as it is."""
        if self.kind != "image":
            return inputs
        if inputs.dtype != torch.uint8:
            raise TypeError(f"{self.name}: images to prepare must be uint8, not {inputs.dtype}")
        mean, std = (
            torch.tensor(values or (0.5,), device=inputs.device).view(-1, 1, 1) for values in (self.mean, self.std)
        )
        return inputs.float().mul_(1 / (255 * std)).sub_(mean / std)
